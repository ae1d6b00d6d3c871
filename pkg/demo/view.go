package demo

import (
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// view is the running display.
type view struct {
	out      io.Writer // nil: none
	width    int       // of the terminal; 0 when it is none
	end      time.Duration
	lines    int // how many are drawn and will be drawn over
	reported int // the last second that has a line
}

func newView(out io.Writer, end time.Duration) *view {
	v := &view{out: out, end: end}
	if out == nil {
		return v
	}
	if width, ok := terminalWidth(out); ok {
		v.width = width
		return v
	}
	fmt.Fprintln(out, "   t  phase    offered/s admitted/s  refused/s  limit  in flight   service")
	return v
}

// terminalWidth returns the number of columns when w is a terminal.
func terminalWidth(w io.Writer) (int, bool) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, false
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	if size.Col == 0 { // a terminal that does not know its size
		return 80, true
	}
	return int(size.Col), true
}

// show draws the last of the samples.
func (v *view) show(samples []Sample) {
	switch last := samples[len(samples)-1]; {
	case v.out == nil:
	case v.width > 0:
		v.redraw(panel(samples, v.width, v.end))
	case int(last.Seconds) > v.reported:
		v.reported = int(last.Seconds)
		fmt.Fprintf(v.out, "%3.0fs  %-8s %9.0f %10.0f %10s %6d %10d %9s\n", last.Seconds, last.Phase,
			last.Offered, last.Admitted, refusals(last), last.Limit, last.InFlight, milliseconds(last.ServiceSeconds))
	}
}

// refusals is a rate; in brackets what the limiter would do if it were on.
func refusals(s Sample) string {
	if s.Phase == Enforce {
		return fmt.Sprintf("%.0f", s.Refused)
	}
	return fmt.Sprintf("(%.0f)", s.WouldRefuse)
}

// redraw writes lines over those of the last time.
func (v *view) redraw(lines []string) {
	var b strings.Builder
	if v.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", v.lines) // up
	}
	for _, line := range lines {
		b.WriteString("\r" + line + "\x1b[K\n") // and clear what is right of it
	}
	v.lines = len(lines)
	_, _ = io.WriteString(v.out, b.String()) // a display that fails is no reason to stop
}

// close takes a panel away, so that the result stands in its place.
func (v *view) close() {
	if v.lines > 0 {
		fmt.Fprintf(v.out, "\x1b[%dA\x1b[J", v.lines)
		v.lines = 0
	}
}

// panel is the display on a terminal.
func panel(samples []Sample, width int, end time.Duration) []string {
	last := samples[len(samples)-1]
	mode := map[string]string{
		"warm-up": "warming up at half load", Observe: "overload, headgate OFF (watching)", Enforce: "overload, headgate ON",
	}[last.Phase]
	room := max(10, width-30)
	history := samples
	if len(history) > room {
		history = history[len(history)-room:]
	}
	spark := func(value func(Sample) float64) string {
		var values []float64
		for _, s := range history {
			values = append(values, value(s))
		}
		return sparkline(values)
	}
	line := func(name, value string, values func(Sample) float64) string {
		return fmt.Sprintf("  %-13s %10s  %s", name, value, spark(values))
	}
	return []string{
		fmt.Sprintf("headgate demo   %s   %.0f of %.0f s", mode, last.Seconds, end.Seconds()),
		"",
		line("offered", fmt.Sprintf("%.0f/s", last.Offered), func(s Sample) float64 { return s.Offered }),
		line("admitted", fmt.Sprintf("%.0f/s", last.Admitted), func(s Sample) float64 { return s.Admitted }),
		line("refused", refusals(last)+"/s", func(s Sample) float64 { return s.Refused }),
		line("answered", fmt.Sprintf("%.0f/s", last.Answered), func(s Sample) float64 { return s.Answered }),
		line("limit", fmt.Sprint(last.Limit), func(s Sample) float64 { return float64(s.Limit) }),
		line("in flight", fmt.Sprint(last.InFlight), func(s Sample) float64 { return float64(s.InFlight) }),
		line("service time", milliseconds(last.ServiceSeconds), func(s Sample) float64 { return s.ServiceSeconds }),
	}
}

// sparkline draws values as bars from 0 to the greatest of them.
func sparkline(values []float64) string {
	top := 0.0
	for _, v := range values {
		top = math.Max(top, v)
	}
	var b strings.Builder
	for _, v := range values {
		level := 0
		if top > 0 && v > 0 {
			level = int(math.Ceil(v / top * 8))
		}
		b.WriteRune([]rune(" ▁▂▃▄▅▆▇█")[level])
	}
	return b.String()
}
