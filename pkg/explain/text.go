package explain

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"headgate/pkg/status"
)

// WriteText writes the explanation for people, in lines of at most width columns
// but where a word is longer.
func (e *Explanation) WriteText(w io.Writer, width int) error {
	b := page{width: width}
	b.wrap("", "", e.Headline)
	for i, note := range e.Notes {
		if i == 0 {
			b.WriteByte('\n')
		}
		b.wrap("! ", "  ", note)
	}
	section := func(title, bullet string, lines []string) {
		if len(lines) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n%s\n", title)
		for _, line := range lines {
			b.wrap("  "+bullet, "  "+strings.Repeat(" ", len(bullet)), line)
		}
	}
	section("Why", "", e.Why)
	section("Last change", "", []string{e.change()})
	section("What would raise it", "- ", e.Raise)
	section("Who is refused", "", e.Refusals)
	if len(e.Terms) > 0 {
		b.WriteString("\nThe last step, term by term\n")
		e.writeTerms(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (e *Explanation) change() string {
	c := e.LastChange
	if c.Reason == "" {
		return "None since the agent began."
	}
	return fmt.Sprintf("%s ago: %s.", ago(c.SecondsAgo), c.Words)
}

// termIndent is where the words of a term begin.
const termIndent = 36

func (e *Explanation) writeTerms(b *page) {
	for _, t := range e.Terms {
		head := fmt.Sprintf("  %-22s %9s  ", status.Printable(t.Name), t.text())
		b.wrap(head, strings.Repeat(" ", termIndent), t.Words)
	}
}

// text is the value in its unit.
func (t *Term) text() string {
	switch {
	case t.Value == nil:
		return "never"
	case strings.HasSuffix(t.Name, "_per_second"):
		return status.Count(*t.Value) + "/s"
	case strings.HasSuffix(t.Name, "_seconds"):
		return status.Seconds(*t.Value)
	}
	v := *t.Value
	if v < 0 {
		return "-" + status.Count(-v)
	}
	if v > 0 && v < 0.01 {
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
	return status.Count(v)
}

// page is text of a width.
type page struct {
	strings.Builder
	width int
}

// wrap writes a paragraph of words: first before its first line, rest before
// the others.
func (b *page) wrap(first, rest, text string) {
	line := first
	empty := true
	for _, word := range strings.Fields(status.Printable(text)) {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > b.width {
			b.WriteString(line + "\n")
			line, empty = rest, true
		}
		if !empty {
			line += " "
		}
		line += word
		empty = false
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}
