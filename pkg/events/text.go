package events

import (
	"fmt"
	"strings"

	"headgate/pkg/status"
)

// Text returns the event as one line for people.
func (e *Event) Text() string {
	var b strings.Builder
	b.WriteString(e.Time.Local().Format("15:04:05.000"))
	if e.Port != 0 {
		fmt.Fprintf(&b, " %s:%d", status.Printable(e.Rule), e.Port)
		if e.Scope != "" && e.Scope != "host" {
			fmt.Fprintf(&b, " (%s)", status.Printable(e.Scope))
		}
	}
	b.WriteByte(' ')
	b.WriteString(e.what())
	return b.String()
}

func (e *Event) what() string {
	switch e.Type {
	case Rejection, HoldTimeout:
		who := "somebody"
		if e.Client != nil {
			who = e.Client.String()
		}
		verb := "refused"
		if e.LetIn {
			verb = "would have been refused"
		}
		text := fmt.Sprintf("%s %s: %s", who, verb, reasonText(e.Reason))
		if e.LeftOut > 0 {
			text += fmt.Sprintf(" (and %d more since the last)", e.LeftOut)
		}
		return text
	case LimitChange:
		if e.From == nil || e.To == nil {
			return "limit changed: " + status.Printable(e.Reason)
		}
		return fmt.Sprintf("limit %d -> %d: %s", *e.From, *e.To, status.Printable(e.Reason))
	case Missed:
		return fmt.Sprintf("%d events were missed: this reader is too slow", e.LeftOut)
	case Reload:
		return "configuration: " + e.sentence()
	case HookTrouble:
		if e.Hook != "" {
			return status.Printable(e.Hook) + ": " + e.sentence()
		}
	}
	return e.sentence()
}

// longest is how many characters of a sentence are shown: two lines of a terminal.
const longest = 160

// sentence is the message in a line. One that is long, such as all that is wrong
// with a configuration, is shortened: the whole is in the JSON form.
func (e *Event) sentence() string {
	text, _, cut := strings.Cut(strings.TrimSpace(e.Message), "\n")
	if all := []rune(text); len(all) > longest {
		text, cut = string(all[:longest]), true
	}
	text = status.Printable(text)
	if cut {
		text += " ... (all of it: -o json)"
	}
	if e.OK != nil && !*e.OK {
		return "TROUBLE: " + text
	}
	return text
}

// reasonText is a reason in words; one that is not known here stands for itself.
func reasonText(reason string) string {
	switch reason {
	case "limit":
		return "the limit was reached"
	case "pace":
		return "its turn in the pace was too far off"
	case "source":
		return "its source's own limit was reached"
	case "flood":
		return "it was a stranger beside a SYN flood"
	case "hold_timeout":
		return "it waited, and no slot came free in time"
	}
	return status.Printable(reason)
}
