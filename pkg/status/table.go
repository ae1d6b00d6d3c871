package status

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Width is the columns of a terminal of the usual size.
const Width = 80

// The columns of text, which may be shortened when a table would be too wide,
// and the one that is left out where no target holds.
const (
	ruleColumn  = 0
	scopeColumn = 2
	modeColumn  = 4
	waitColumn  = 6
)

// What is left at least of a column that is shortened.
const (
	leastColumn = 4 // of rule and scope
	leastMode   = 3
)

var header = []string{"RULE", "PORT", "SCOPE", "UNIT", "MODE", "IN FLIGHT", "WAIT", "LATENCY", "BASELINE", "DONE", "REJECTED"}

// WriteTable writes the status as text, a line a target. The lines of targets are
// at most so wide, by taking from the names of rules and scopes; 0: as wide as it
// takes.
func (s *Status) WriteTable(w io.Writer, width int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "headgate %s, mode %s, lease %s\n", Printable(s.Version), Printable(s.mode()), Seconds(s.LeaseSeconds))
	for _, problem := range s.Wrong() {
		fmt.Fprintf(&b, "! %s\n", Printable(problem))
	}
	var missing []string
	for name, has := range s.Capabilities {
		if !has {
			missing = append(missing, Printable(name))
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		fmt.Fprintf(&b, "not on this kernel: %s\n", strings.Join(missing, ", "))
	}
	if hand := s.byHand(); len(hand) > 0 {
		fmt.Fprintf(&b, "set by hand: %s\n", Printable(few(hand)))
	}
	if exempt := s.loopbackExempt(); len(exempt) > 0 {
		fmt.Fprintf(&b, "loopback: exempt on %s\n", Printable(few(exempt)))
	}
	for i := range s.Targets {
		t := &s.Targets[i]
		if len(t.Classes) > 0 {
			fmt.Fprintf(&b, "classes of %s:%d, in flight and guaranteed: %s\n", Printable(t.Rule), t.Port, Printable(t.classes()))
		}
		if t.Flood {
			fmt.Fprintf(&b, "SYN flood on port %d (%s): strangers are counted once they are connected\n", t.Port, Printable(t.Rule))
		}
	}
	if len(s.Targets) == 0 {
		b.WriteString("no targets\n")
	} else {
		b.WriteByte('\n')
		s.writeRows(&b, width)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Wrong returns what is not as it should be, one sentence each, the worst first.
func (s *Status) Wrong() []string {
	var wrong []string
	for _, p := range s.Problems {
		wrong = append(wrong, "not protected: "+p)
	}
	if failed := s.Reload.Failure(); failed != "" {
		wrong = append(wrong, failed)
	}
	for _, t := range s.Troubles {
		wrong = append(wrong, t.Hook+": "+t.Trouble)
	}
	for _, o := range s.Shadowed {
		wrong = append(wrong, fmt.Sprintf("program %d %s comes before ours at %s %s", o.ID, o.Name, o.Hook, o.At))
	}
	for i, u := range s.Unprotected {
		const most = 3
		if i == most {
			wrong = append(wrong, fmt.Sprintf("and %d more are found and not protected", len(s.Unprotected)-most))
			break
		}
		at := u.Scope
		if u.Port != 0 {
			at = fmt.Sprintf("port %d of %s", u.Port, u.Scope)
		}
		wrong = append(wrong, fmt.Sprintf("rule %s does not protect %s: %s", u.Rule, at, strings.ReplaceAll(u.Reason, "\n", "; ")))
	}
	var silent, watched, floored []string
	for i := range s.Targets {
		t := &s.Targets[i]
		name := t.Rule + ":" + strconv.Itoa(int(t.Port))
		if !t.Listening {
			silent = append(silent, name)
		}
		if t.AtFloor {
			floored = append(floored, name)
		}
		if t.Mode == "observe" {
			watched = append(watched, name)
		}
	}
	if len(silent) > 0 {
		wrong = append(wrong, "nobody listens on "+few(silent))
	}
	if len(floored) > 0 {
		wrong = append(wrong, "at the smallest limit and still slow: "+few(floored))
	}
	switch {
	case len(watched) == 0:
	case len(watched) == len(s.Targets):
		wrong = append(wrong, "observe: nobody is refused")
	default:
		wrong = append(wrong, "observe: nobody is refused on "+few(watched))
	}
	return wrong
}

// Failure says in a line what went wrong with the last reload and when; empty
// where it was successful, or there was none.
func (r *Reload) Failure() string {
	if r == nil || r.Successful {
		return ""
	}
	first, _, more := strings.Cut(strings.TrimSpace(r.Error), "\n")
	if more {
		first += " ..."
	}
	ago := time.Duration(max(r.SecondsAgo, 0) * float64(time.Second)).Round(time.Second)
	return fmt.Sprintf("not reloaded %v ago, the configuration before stays in force: %s", ago, first)
}

// classes says how many of each are in flight, and what is guaranteed to it; of
// others, what is free to all.
func (t *Target) classes() string {
	var all []string
	for _, c := range t.Classes {
		all = append(all, fmt.Sprintf("%s %s/%s", c.Name, Count(float64(c.InFlight)), Count(float64(c.Limit))))
	}
	return strings.Join(all, ", ")
}

// mode is that of all targets: what a rule says, or a hand has set, goes before
// what the configuration says of all.
func (s *Status) mode() string {
	for i := range s.Targets {
		if s.Targets[i].Mode != s.Targets[0].Mode {
			return "by target"
		}
	}
	if len(s.Targets) > 0 {
		return s.Targets[0].Mode
	}
	return s.Mode
}

// byHand names what was set by hand of the targets.
func (s *Status) byHand() []string {
	var all []string
	for i := range s.Targets {
		t := &s.Targets[i]
		if t.Override == nil {
			continue
		}
		var what []string
		if n := t.Override.Limit; n != nil {
			what = append(what, "limit "+strconv.Itoa(*n))
		}
		if m := t.Override.Mode; m != "" {
			what = append(what, m)
		}
		if len(t.Override.Exempt)+len(t.Override.NotExempt) > 0 {
			what = append(what, "who is exempt")
		}
		all = append(all, fmt.Sprintf("%s:%d (%s)", t.Rule, t.Port, strings.Join(what, ", ")))
	}
	return all
}

// loopbackExempt names the targets that do not count clients on the host itself:
// who tries a limit from there is to know.
func (s *Status) loopbackExempt() []string {
	var exempt []string
	for i := range s.Targets {
		if t := &s.Targets[i]; strings.HasSuffix(t.Loopback, "exempt") {
			exempt = append(exempt, t.Rule+":"+strconv.Itoa(int(t.Port)))
		}
	}
	return exempt
}

// few names some, and how many more there are.
func few(names []string) string {
	const most = 3
	if len(names) > most+1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

func (s *Status) writeRows(b *strings.Builder, width int) {
	rows := [][]string{slices.Clone(header)}
	holds := false
	for i := range s.Targets {
		rows = append(rows, s.Targets[i].cells())
		holds = holds || s.Targets[i].Hold.MaxWaiting > 0
	}
	if !holds {
		for i, row := range rows {
			rows[i] = slices.Delete(row, waitColumn, waitColumn+1)
		}
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	if width > 0 {
		fit(widths, width)
	}
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				b.WriteByte(' ')
			}
			cell = shorten(cell, widths[i], i == modeColumn)
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == ruleColumn || i >= scopeColumn && i <= modeColumn {
				cell += pad // text to the left, numbers to the right
			} else {
				cell = pad + cell
			}
			b.WriteString(cell)
		}
		b.WriteByte('\n')
	}
}

func (t *Target) cells() []string {
	rejected := Count(float64(t.RejectedTotal.Sum()))
	if t.Mode == "observe" {
		rejected = "would " + Count(float64(t.WouldRejectTotal))
	}
	return []string{
		Printable(t.Rule),
		strconv.Itoa(int(t.Port)),
		Printable(t.Scope),
		t.shortUnit(),
		Printable(t.Mode),
		Count(float64(t.InFlight)) + "/" + Count(float64(t.Limit)),
		t.wait(),
		Seconds(t.Window.MeanSeconds),
		Seconds(t.BaselineSeconds),
		Count(t.ThroughputPerSecond) + "/s",
		rejected,
	}
}

func (t *Target) shortUnit() string {
	switch t.Unit {
	case "connection":
		return "conn"
	case "request":
		return "req"
	}
	return "-"
}

// wait is how many wait; a dash where none can.
func (t *Target) wait() string {
	if t.Hold.MaxWaiting == 0 {
		return "-"
	}
	return Count(float64(t.Waiting))
}

// Sum is how many were rejected for whatever reason.
func (r Rejected) Sum() uint64 { return r.Limit + r.Pace + r.Source + r.Flood + r.HoldTimeout }

// fit takes from the wider of rule and scope, and then from the mode, until the
// line fits.
func fit(widths []int, width int) {
	total := len(widths) - 1
	for _, w := range widths {
		total += w
	}
	for ; total > width; total-- {
		i := ruleColumn
		if widths[scopeColumn] > widths[ruleColumn] {
			i = scopeColumn
		}
		if widths[i] <= leastColumn {
			i = modeColumn
		}
		if i == modeColumn && widths[i] <= leastMode {
			return
		}
		widths[i]--
	}
}

// shorten cuts a text off, and shows that unless it is plain.
func shorten(s string, width int, plain bool) string {
	switch {
	case utf8.RuneCountInString(s) <= width:
		return s
	case plain:
		return string([]rune(s)[:width])
	}
	return string([]rune(s)[:width-2]) + ".."
}

// Seconds formats a time with three digits and its unit; a dash for none.
func Seconds(s float64) string {
	switch {
	case !(s > 0) || math.IsInf(s, 1):
		return "-"
	case s < 999.5e-9:
		return digits(s*1e9) + "ns"
	case s < 999.5e-6:
		return digits(s*1e6) + "us"
	case s < 999.5e-3:
		return digits(s*1e3) + "ms"
	case s < 99999.5:
		return digits(s) + "s"
	}
	return ">1d"
}

// Count formats a number with up to five digits, or three and k, M, G or T.
func Count(v float64) string {
	switch {
	case math.IsNaN(v) || v < 0:
		return "-"
	case v < 99999.5:
		if v == math.Trunc(v) || v >= 99.95 {
			return strconv.FormatFloat(v, 'f', 0, 64)
		}
		return digits(v)
	}
	for _, unit := range []string{"k", "M", "G", "T"} {
		if v /= 1000; v < 999.5 {
			return digits(v) + unit
		}
	}
	return ">1P"
}

// digits formats 0 < v with three significant digits and no exponent.
func digits(v float64) string {
	switch {
	case v < 9.995:
		return trim(strconv.FormatFloat(v, 'f', 2, 64))
	case v < 99.95:
		return trim(strconv.FormatFloat(v, 'f', 1, 64))
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

func trim(s string) string { return strings.TrimSuffix(strings.TrimRight(s, "0"), ".") }
