package explain

import (
	"fmt"

	"headgate/pkg/status"
)

// raise says what would raise the limit, the simplest first.
func (s *speaker) raise() (ways []string) {
	add := func(when bool, format string, args ...any) {
		if when {
			ways = append(ways, fmt.Sprintf(format, args...))
		}
	}
	t := &s.Target
	if s.Override != nil {
		add(true, "`headgate limit clear %d`, or another number for `headgate limit set %d`.", t.Port, t.Port)
		return ways
	}
	add(!s.Listening, "A server that listens on the port.")
	switch {
	case s.fixed():
		add(true, "Another limit.initial in the configuration, or for a while `headgate limit set %d N --for 10m`.", t.Port)
	case s.atMost():
		add(true, "A larger limit.max in the configuration.")
	case s.is("warming"):
		add(true, "The end of the warm-up, warm_up in the configuration.")
	case s.term["baseline_seconds"] <= 0 && t.Algorithm != "aimd":
		add(true, "Answers to requests: without any there is nothing to go by.")
	case !s.busy():
		add(true, "More in flight: %s of %d%s, and what is not needed is not raised.", are(s.atWork()), s.own(), s.leftAside())
	case s.queued():
		add(true, "A faster service: at %s instead of %s there is no queue.", status.Seconds(s.term["baseline_seconds"]), status.Seconds(s.now()))
		add(t.Algorithm == "guarded", "If %s was always too short: a probe finds that out, the next at least %s after the last.",
			status.Seconds(s.term["baseline_seconds"]), status.Seconds(s.term["probe_gap_seconds"]))
	default:
		add(true, "Nothing has to be done: it grows by itself while it is in use and no queue stands.")
	}
	add(t.RejectedTotal.Pace > 0, "Those refused for their turn in the pace are helped by pace.rate or pace.max_wait, not by the limit.")
	add(t.RejectedTotal.Source > 0, "Those refused for their source's own limit are helped by per_source, not by the limit.")
	return ways
}

// leftAside says what is not counted where only the limit itself is meant.
func (s *speaker) leftAside() string {
	switch {
	case s.burst() > 0 && s.Idle > 0:
		return ", idle ones and the allowance for bursts left aside"
	case s.burst() > 0:
		return ", the allowance for bursts left aside"
	case s.Idle > 0:
		return ", idle ones left aside"
	}
	return ""
}

// busy says whether the limit is in use, as the algorithms ask.
func (s *speaker) busy() bool {
	return s.RefusedPerSecond > 0 || !s.is("app_limited") && 2*s.atWork() >= s.own()
}

func (s *speaker) queued() bool {
	ratio, ok := s.term["gradient"]
	if s.Target.Algorithm == "vegas" {
		return s.term["queue_size"] > s.term["alpha"]
	}
	if s.Target.Algorithm == "guarded" {
		return ok && ratio < standing
	}
	return ok && ratio < 0.95
}
