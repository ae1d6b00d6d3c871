package explain

import (
	"fmt"

	"headgate/pkg/status"
)

// why says where the number comes from, in the order in which one would think
// of it.
func (s *speaker) why() (why []string) {
	add := func(when bool, format string, args ...any) {
		if when {
			why = append(why, fmt.Sprintf(format, args...))
		}
	}
	t := &s.Target
	add(s.Override != nil, "Somebody set it by hand. What follows is what the algorithm would have, %d.", s.Base)
	add(s.Idle > 0, "%d is for %s that are worked on; %s only kept open, and %s no slot of these.",
		s.Base, s.units, are(s.Idle), takes(s.Idle))
	switch t.Algorithm {
	case "fixed":
		add(true, "It is fixed: the configuration says so (limit.initial), and nothing that is measured moves it.")
	case "aimd":
		add(true, "It grows by one in each window in which at least half of it is in use, and shrinks when something takes longer than %s, or is lost.",
			status.Seconds(s.term["timeout_seconds"]))
		add(s.is("backoff"), "The last window had that: it shrank.")
	case "vegas":
		why = append(why, s.latency(vegasQueue)...)
	case "blog":
		why = append(why, s.latency(nil)...)
		add(s.term["growth"] > 0, "Each window multiplies it by that ratio and adds what is worked on at once: %s.", number(s.term["growth"]))
	case "gradient", "gradient2":
		why = append(why, s.latency(nil)...)
		add(s.term["queue_size"] > 0, "Each window multiplies it by the gradient, %s, and adds %s.", number(s.term["gradient"]), number(s.term["queue_size"]))
	default:
		why = append(why, s.guarded()...)
	}
	add(s.is("app_limited"), "Less than half of it is in use, so it stays: what is not needed is not raised.")
	add(t.Pace.RatePerSecond > 0, "Beside the limit there is a pace: %s a second, whatever is in flight.", number(t.Pace.RatePerSecond))
	why = append(why, s.classes()...)
	switch {
	case s.atMost():
		add(true, "It is at its maximum, limit.max: %d.", s.Max)
	case s.burst() > 0 && s.Max > 0 && s.Base >= s.Max:
		add(true, "The allowance ends at limit.max: %d.", s.Max)
	}
	return why
}

// classes say how the limit is shared.
func (s *speaker) classes() (lines []string) {
	for _, c := range s.Target.Classes {
		if c.Share > 0 {
			lines = append(lines, fmt.Sprintf("%d of it are for the class %s alone (%.0f %%): %s.", c.Limit, c.Name, 100*c.Share, areIn(c.InFlight)))
		} else {
			lines = append(lines, fmt.Sprintf("What is left, %d, is free to all: of the class %s %s.", c.Limit, c.Name, areIn(c.InFlight)))
		}
	}
	return lines
}

func areIn(n int) string { return are(n) + " in flight" }

func takes(n int) string {
	if n == 1 {
		return "takes"
	}
	return "take"
}

// signal is what the limit follows, as the subject of a sentence.
func (s *speaker) signal() string {
	switch s.Target.Signal {
	case "rtt":
		return "A TCP round trip"
	case "connection":
		return "A connection"
	case "accept":
		return "Getting a worker for a new connection"
	}
	return "A request"
}

// latency says what was measured; queue explains what that says of a queue.
func (s *speaker) latency(queue func(*speaker) string) []string {
	base, now := s.term["baseline_seconds"], s.now()
	if base <= 0 || now <= 0 {
		return []string{"Nothing was measured yet: the initial limit holds until requests are answered."}
	}
	what := "at its fastest"
	if s.Target.Algorithm == "gradient2" {
		what = "on a long average"
	}
	lines := []string{fmt.Sprintf("%s takes %s %s, and %s now.", s.signal(), status.Seconds(base), what, status.Seconds(now))}
	if queue != nil {
		lines = append(lines, queue(s))
	}
	return lines
}

func (s *speaker) now() float64 {
	if v := s.term["average_seconds"]; v > 0 {
		return v
	}
	return s.term["round_trip_seconds"]
}

func vegasQueue(s *speaker) string {
	return fmt.Sprintf("By that, about %s of those in flight wait. Below %s it grows, above %s it shrinks.",
		number(s.term["queue_size"]), number(s.term["alpha"]), number(s.term["beta"]))
}

// standing is what guarded takes for a queue; see docs/design/guarded.md.
const standing = 0.7

func (s *speaker) guarded() (why []string) {
	add := func(when bool, format string, args ...any) {
		if when {
			why = append(why, fmt.Sprintf(format, args...))
		}
	}
	base, now, ratio := s.term["baseline_seconds"], s.term["round_trip_seconds"], s.term["gradient"]
	if base <= 0 || now <= 0 {
		return []string{"How long a request takes when none waits is not known yet: the first ones tell. Until then the initial limit holds."}
	}
	queue := "no queue stands"
	switch {
	case ratio < standing:
		queue = "a queue stands"
	case ratio < 0.9:
		queue = "hardly anything waits"
	}
	add(true, "%s takes %s when none waits (the baseline), and %s now: %s (gradient %.2f).",
		s.signal(), status.Seconds(base), status.Seconds(now), queue, ratio)
	add(true, "%s finish a second, so the service works on %s at once (throughput times baseline).",
		number(s.term["throughput_per_second"]), number(s.term["carried"]))
	switch {
	case s.is("probing"):
		add(true, "A probe is on: for a moment %d are let in and not the limit of %d, to time a few that nothing waits in front of.", s.Base, s.own())
	case s.is("starting"):
		add(true, "No queue was ever seen, so each full window adds what the service works on.")
	default:
		limit, share, growth := s.term["limit"], min(max(ratio, 0.5), 1), s.term["growth"]
		add(true, "While it is in use, each window moves the limit towards gradient times limit plus growth: %.2f x %s + %s = %s.",
			share, number(limit), number(growth), number(share*limit+growth))
	}
	add(s.term["headroom"] < 0.95, "More at once was seen to complete hardly more, so it grows at %.0f %% of the usual.", 100*s.term["headroom"])
	switch own := s.own(); {
	case s.burst() > 0:
		add(true, "The limit itself is %d. %d more are an allowance for bursts: it ends with the first refusal, and comes back when nothing was refused for a while.",
			own, s.burst())
	case !s.is("probing") && s.Base != own:
		add(true, "The limit itself is %d; in this window %d are let in, to see whether more at once completes more.", own, s.Base)
	}
	return why
}

// number is a quantity with three digits.
func number(v float64) string { return status.Count(v) }
