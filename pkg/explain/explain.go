// Package explain says in words why the limit of a target is what it is. The
// sentences are for somebody who was woken at three in the morning; the numbers
// beside them are those of the algorithm's last step.
package explain

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"

	"headgate/pkg/controller"
	"headgate/pkg/status"
)

// Facts is what an explanation is made from.
type Facts struct {
	Target status.Target
	Terms  []controller.Term // of the algorithm, after its last step

	// Base is the limit of units that are worked on, and Idle how many more are
	// let in for connections that are only kept open; Target.Limit is both.
	Base, Idle int
	Min, Max   int // as configured; 0: that of the algorithm

	Listening bool // somebody listens on the port
	Timed     bool // the packets of its server are seen, so that it can be timed

	RefusedPerSecond float64  // in the last second, or would have been
	LastRefused      *Refused // nil: nobody, since the agent began

	Override *Override // the limit was set by hand; nil: it was not
	Flood    bool      // SYNs that nobody follows up come in numbers

	// Trouble is why the agent does not protect its targets now, see
	// [headgate/pkg/agent.Agent.NotReady].
	Trouble []string
}

// Refused is somebody who was refused.
type Refused struct {
	Client     netip.AddrPort `json:"client"`
	Reason     string         `json:"reason"` // limit, pace, source, flood, hold_timeout
	SecondsAgo float64        `json:"seconds_ago"`
	LetIn      bool           `json:"let_in"` // it would have been refused, but nothing is in force
}

// Override is a limit that was set by hand.
type Override struct {
	Limit       int     `json:"limit"`
	SecondsLeft float64 `json:"seconds_left"` // 0: until it is cleared
}

// Explanation is why a limit is what it is. Each text is a sentence.
type Explanation struct {
	Headline string   `json:"headline"`
	Notes    []string `json:"notes"` // what is not as it usually is, the worst first
	Why      []string `json:"why"`
	Raise    []string `json:"raise"` // what would raise the limit
	Refusals []string `json:"refusals"`

	LastChange  Change    `json:"last_change"`
	LastRefused *Refused  `json:"last_refused"`
	Override    *Override `json:"override"`
	Terms       []Term    `json:"terms"` // of the last step

	Target status.Target `json:"target"`
}

// Change is the last change of the limit.
type Change struct {
	Reason     string  `json:"reason"`
	Words      string  `json:"words"`
	SecondsAgo float64 `json:"seconds_ago"`
}

// Term is one quantity of the last step; without a value it has no end.
type Term struct {
	Name  string   `json:"name"`
	Value *float64 `json:"value"`
	Words string   `json:"words"`
}

// New explains.
func New(f Facts) *Explanation {
	s := &speaker{Facts: f, term: make(map[string]float64), units: f.Target.Unit + "s"}
	for _, t := range f.Terms {
		s.term[t.Name] = t.Value
	}
	e := &Explanation{
		Headline:    s.headline(),
		Notes:       nonNil(s.notes()),
		Why:         nonNil(s.why()),
		Raise:       nonNil(s.raise()),
		Refusals:    nonNil(s.refusals()),
		LastRefused: f.LastRefused,
		Override:    f.Override,
		Terms:       make([]Term, 0, len(f.Terms)),
		Target:      f.Target,
		LastChange: Change{
			Reason:     f.Target.LastChange.Reason,
			Words:      controller.Reason(f.Target.LastChange.Reason).Words(),
			SecondsAgo: f.Target.LastChange.SecondsAgo,
		},
	}
	for _, t := range f.Terms {
		term := Term{Name: t.Name, Words: t.Words}
		if v := t.Value; !math.IsNaN(v) && !math.IsInf(v, 0) {
			term.Value = &v
		}
		e.Terms = append(e.Terms, term)
	}
	return e
}

func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// speaker puts facts into words.
type speaker struct {
	Facts
	term  map[string]float64
	units string // connections or requests
}

func (s *speaker) is(term string) bool { return s.term[term] == 1 }

// burst is the allowance above the limit itself, which ends with the first
// refusal.
func (s *speaker) burst() int { return int(s.term["burst"]) }

// own is the limit itself, without the allowance and what moves it for a window.
func (s *speaker) own() int {
	if v := int(math.Round(s.term["limit"])); v > 0 && s.guards() {
		return v
	}
	return s.Base
}

// guards says whether the algorithm is guarded, whose limit is not all that is
// in force.
func (s *speaker) guards() bool { return s.Target.Algorithm == "guarded" }

// atWork are the units in flight that the limit is for.
func (s *speaker) atWork() int { return max(s.Target.InFlight-s.Idle, 0) }

// least and most are the bounds of the limit.
func (s *speaker) least() int   { return max(s.Min, 1) }
func (s *speaker) atMost() bool { return s.Max > 0 && max(s.Base-s.burst(), s.own()) >= s.Max }

func (s *speaker) fixed() bool { return s.Target.Algorithm == "fixed" }

func (s *speaker) headline() string {
	t := &s.Target
	text := fmt.Sprintf("Port %d (rule %s, %s): %s %s may be in flight, %s", t.Port, t.Rule, t.Scope,
		status.Count(float64(t.Limit)), plural(s.units, t.Limit), are(t.InFlight))
	if t.Waiting > 0 {
		text += fmt.Sprintf(", and %s", wait(t.Waiting))
	}
	return text + "."
}

func are(n int) string {
	switch n {
	case 0:
		return "none is"
	case 1:
		return "1 is"
	}
	return status.Count(float64(n)) + " are"
}

func wait(n int) string {
	if n == 1 {
		return "1 waits"
	}
	return status.Count(float64(n)) + " wait"
}

func plural(units string, n int) string {
	if n == 1 {
		return units[:len(units)-1]
	}
	return units
}

// notes are what is not as it usually is, the worst first.
func (s *speaker) notes() (notes []string) {
	add := func(when bool, format string, args ...any) {
		if when {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	t := &s.Target
	for _, trouble := range s.Trouble {
		add(true, "Not protected now: %s.", trouble)
	}
	add(!s.Listening, "Nobody listens on port %d: whoever connects is refused by the kernel, not by headgate.", t.Port)
	add(t.Mode == "observe", "The mode is observe: the limit is computed and counted, and nobody is refused. `headgate mode enforce %d` changes that.", t.Port)
	if o := s.Override; o != nil {
		left := "until it is cleared"
		if o.SecondsLeft > 0 {
			left = "for " + ago(o.SecondsLeft) + " more"
		}
		add(true, "The limit was set to %d by hand, %s; the algorithm goes on beside it. `headgate limit clear %d` ends that.", o.Limit, left, t.Port)
	}
	add(t.Override != nil && t.Override.Mode != "", "The mode was set by hand; the configuration may say otherwise.")
	add(s.Flood, "SYNs that nobody follows up come in numbers (a flood): until it is over no slot is reserved for a handshake.")
	add(s.Listening && !s.Timed && t.Signal == "service" && !s.fixed(),
		"The server's answers are not timed: its cgroup was not found, or this kernel cannot. The limit does not move.")
	add(s.is("warming"), "Warming up: until that is over no baseline is recorded, and the initial limit holds.")
	add(s.is("floored"), "The limit is at its minimum (%d) and a queue stands all the same: the service is slow for a reason that no limit mends, or the minimum is more than it carries.", s.least())
	add(t.AcceptQueue.Max > 0 && t.AcceptQueue.Length >= t.AcceptQueue.Max,
		"The server's accept queue is full (%d): the kernel drops connections before the server sees them. Its backlog, or net.core.somaxconn, is below the limit.", t.AcceptQueue.Max)
	return notes
}

// refusals say who is refused, and why.
func (s *speaker) refusals() (lines []string) {
	t := &s.Target
	var exempted []string
	r := t.RejectedTotal
	for _, reason := range []struct {
		n     uint64
		words string
	}{
		{r.Limit, "because the limit was reached"},
		{r.Pace, "because their turn in the pace was too far off"},
		{r.Source, "because their source's own limit was reached"},
		{r.HoldTimeout, "after waiting in vain for " + status.Seconds(t.Hold.MaxWaitSeconds)},
	} {
		if reason.n > 0 {
			lines = append(lines, fmt.Sprintf("%s refused %s, in all.", status.Count(float64(reason.n)), reason.words))
		}
	}
	if n := t.WouldRejectTotal; n > 0 {
		lines = append(lines, fmt.Sprintf("%s would have been refused and were let in: in observe mode, or while no agent was there.", status.Count(float64(n))))
	}
	if n := t.ExemptedTotal; n > 0 {
		exempted = append(exempted, fmt.Sprintf("%s came from exempt sources: they are let in, and not counted.", status.Count(float64(n))))
	}
	if len(lines) == 0 {
		return append([]string{"Nobody was refused until now."}, exempted...)
	}
	for _, c := range t.Classes {
		if c.RejectedTotal > 0 {
			lines = append(lines, fmt.Sprintf("Of these, %s were of the class %s.", status.Count(float64(c.RejectedTotal)), c.Name))
		}
	}
	lines = append(lines, exempted...)
	l := s.LastRefused
	switch {
	case s.RefusedPerSecond > 0:
		lines = append(lines, fmt.Sprintf("%s in the last second.", status.Count(s.RefusedPerSecond)))
	case l == nil || l.SecondsAgo > 2: // the count of the last second is up to a second old
		lines = append(lines, "None in the last second.")
	}
	if l != nil {
		letIn := ""
		if l.LetIn {
			letIn = " (it was let in)"
		}
		lines = append(lines, fmt.Sprintf("Last: %s, %s%s, %s ago.", l.Client, cmp.Or(reasons[l.Reason], l.Reason), letIn, ago(l.SecondsAgo)))
	}
	return lines
}

var reasons = map[string]string{
	"limit":        "the limit was reached",
	"pace":         "its turn in the pace was too far off",
	"flood":        "it was a stranger beside a SYN flood",
	"source":       "its source's own limit was reached",
	"hold_timeout": "it waited in vain",
}

// ago is how long something is ago, to a tenth of a second.
func ago(seconds float64) string {
	switch {
	case seconds < 60:
		return fmt.Sprintf("%.1f s", max(seconds, 0))
	case seconds < 3600:
		return fmt.Sprintf("%.0f min", seconds/60)
	case seconds < 48*3600:
		return fmt.Sprintf("%.0f h", seconds/3600)
	}
	return fmt.Sprintf("%.0f days", seconds/86400)
}
