package controller

import (
	"fmt"
	"time"
)

// Growth is the unit of the throughput that blog adds to its limit.
type Growth string

const (
	// LittlesLaw adds throughput times baseline: the units that are worked on
	// at once. Under FIFO service the limit settles at twice the capacity.
	LittlesLaw Growth = "littles_law"

	// PerWindow adds the units finished in the window.
	PerWindow Growth = "per_window"

	// PerSecond adds the units finished in a second.
	PerSecond Growth = "per_second"
)

func (g Growth) check() error {
	if g != LittlesLaw && g != PerWindow && g != PerSecond {
		return fmt.Errorf("%q is none of littles_law, per_window, per_second", string(g))
	}
	return nil
}

// Blog is the rule limit x (Lbase / Lavg) + T. Lavg is an exponential average
// of the latency and Lbase the lowest that it was. T is the current
// throughput, whose unit decides where the limit settles: with FIFO service
// at limit - capacity = T. The baseline never rises, so a lasting rise of the
// service time leaves the limit too low.
//
// Settings: initial 20, min 5, max 65536, smoothing 0.2 (of Lavg), growth
// littles_law, warm_up 60s; windows of 100 ms. During the warm-up Lavg is
// kept, but no baseline, and the limit stays.
type Blog struct {
	min, max  float64
	smoothing float64
	growth    Growth

	limit    float64
	average  float64 // ns; 0 until measured
	baseline float64 // ns; 0 until measured
	rate     float64 // units a second
	added    float64
	idle     bool // app-limited in the last step
}

func newBlog(s *settings, p Params) (Stepper, frame) {
	initial, lo, hi := s.bounds(p, 20, 5, 65536, 1)
	b := &Blog{
		min:       float64(lo),
		max:       float64(hi),
		smoothing: s.share("smoothing", p.Smoothing, 0.2),
		growth:    word(s, "growth", p.Growth, LittlesLaw),
		limit:     float64(initial),
	}
	return b, frame{min: lo, max: hi, shortest: 100 * time.Millisecond, longest: 100 * time.Millisecond, warmUp: time.Minute}
}

// OnSample takes one step.
func (b *Blog) OnSample(s Sample) {
	w := s.weight()
	if b.average == 0 {
		b.average = s.rtt()
	}
	b.average = toward(b.average, s.rtt(), b.smoothing*w)
	b.rate = float64(s.Count) / max(s.Span, 1).Seconds()
	if s.Warming {
		return
	}
	if b.baseline == 0 || b.average < b.baseline {
		b.baseline = b.average
	}
	b.idle = float64(s.InFlight) < b.limit/2
	if b.idle {
		return
	}
	switch b.growth {
	case PerWindow:
		b.added = float64(s.Count)
	case PerSecond:
		b.added = b.rate
	default:
		b.added = b.rate * b.baseline / 1e9
	}
	limit := float64(b.limit*b.baseline/b.average) + b.added
	b.limit = toward(b.limit, max(b.min, min(b.max, limit)), w)
}

// Limit returns the enforced limit: the estimate, truncated.
func (b *Blog) Limit() int { return truncate(b.limit) }

// Terms returns the state after the last step.
func (b *Blog) Terms() []Term {
	gradient := 1.0
	if b.average > 0 && b.baseline > 0 {
		gradient = b.baseline / b.average
	}
	return []Term{
		{"limit", b.limit, "The estimate of which the enforced limit is the whole part."},
		{"baseline_seconds", b.baseline / 1e9, "The lowest average latency since the warm-up."},
		{"average_seconds", b.average / 1e9, "Exponential average of the latency."},
		{"gradient", gradient, "Baseline over average: the limit is multiplied by it."},
		{"throughput_per_second", b.rate, "Units finished a second in the last window."},
		{"growth", b.added, "Units that the last step added."},
		{"app_limited", truth(b.idle), "1 when less than half of the limit was in use, so that it stayed."},
	}
}
