package controller

import (
	"math"
	"math/rand/v2"
	"time"
)

// Gradient is the older GradientLimit of Netflix's concurrency-limits: it
// compares the RTT with the lowest one seen, and forgets that in probes, for
// which the limit falls to the queue size.
//
// Settings: initial 50, min 1, max 1000, smoothing 0.2, queue_size
// "sqrt(limit), at least 4", rtt_tolerance 2, backoff_ratio 0.9,
// probe_interval 1000 (a probe comes after 1 to 2 times as many windows);
// windows of 1 s.
type Gradient struct {
	min, max  float64
	smoothing float64
	queueSize Amount
	tolerance float64
	ratio     float64
	interval  int // windows between probes; -1: none
	rng       rand.PCG
	pinned    int // countdown of every probe; -1: drawn

	limit     float64
	baseline  float64 // ns; 0 until measured
	countdown int
	gradient  float64
	queue     float64
	idle      bool // app-limited in the last step
	probed    bool // the last step was a probe
}

func newGradient(s *settings, p Params) (Stepper, frame) {
	initial, lo, hi := s.bounds(p, 50, 1, 1000, 1)
	g := &Gradient{
		min:       float64(lo),
		max:       float64(hi),
		smoothing: s.share("smoothing", p.Smoothing, 0.2),
		queueSize: s.amount("queue_size", p.QueueSize, Amount{of: "sqrt", factor: 1, least: 4}),
		tolerance: number(s, "rtt_tolerance", p.RTTTolerance, 2, 1, 1000),
		ratio:     number(s, "backoff_ratio", p.BackoffRatio, 0.9, 0.5, 1),
		interval:  number(s, "probe_interval", p.ProbeInterval, 1000, -1, 1e9),
		rng:       *rand.NewPCG(p.Seed, 1),
		pinned:    -1,
		limit:     float64(initial),
		gradient:  1,
	}
	if g.interval == 0 {
		s.fail("probe_interval", "0 is neither -1 (never) nor from 1 to 1e9")
	}
	g.countdown = g.nextCountdown()
	return g, frame{min: lo, max: hi, shortest: time.Second, longest: time.Second}
}

// PinProbes makes a probe come after exactly so many steps, from now on.
func (g *Gradient) PinProbes(steps int) { g.pinned, g.countdown = steps, steps }

func (g *Gradient) nextCountdown() int {
	if g.pinned >= 0 || g.interval <= 0 {
		return g.pinned
	}
	return g.interval + int(uniform(&g.rng)*float64(g.interval))
}

// uniform returns a number in [0, 1).
func uniform(rng *rand.PCG) float64 { return float64(rng.Uint64()>>11) / (1 << 53) }

// OnSample takes one step.
func (g *Gradient) OnSample(s Sample) {
	if s.Warming {
		return
	}
	g.queue = g.queueSize.at(g.limit)
	g.probed = false
	if g.interval > 0 {
		g.countdown--
		if g.countdown < 0 {
			g.countdown = g.nextCountdown()
			g.limit = max(g.min, g.queue)
			g.baseline = 0
			g.probed = true
			return
		}
	}
	rtt := s.rtt()
	if g.baseline == 0 || rtt < g.baseline {
		g.baseline = rtt
	}
	g.gradient = max(0.5, min(1, g.tolerance*g.baseline/rtt))
	g.idle = !s.Dropped && float64(s.InFlight) < g.limit/2
	if g.idle {
		return
	}
	limit := g.limit * g.ratio
	if !s.Dropped {
		limit = float64(g.limit*g.gradient) + g.queue
	}
	if limit < g.limit {
		limit = max(g.min, toward(g.limit, limit, g.smoothing))
	}
	limit = max(g.queue, min(g.max, limit))
	g.limit = toward(g.limit, limit, s.weight())
}

// special is why the last step moved the limit, where that is not the RTT.
func (g *Gradient) special() Reason {
	if g.probed {
		return ReasonProbe
	}
	return ReasonNone
}

// Limit returns the enforced limit: the estimate, truncated.
func (g *Gradient) Limit() int { return truncate(g.limit) }

// EstimatedLimit returns the limit before truncation.
func (g *Gradient) EstimatedLimit() float64 { return g.limit }

// Baseline returns the lowest RTT since the last probe in nanoseconds, 0 when
// there was none.
func (g *Gradient) Baseline() float64 { return g.baseline }

// Terms returns the state after the last step.
func (g *Gradient) Terms() []Term {
	until := math.Inf(1)
	if g.interval > 0 {
		until = float64(g.countdown)
	}
	return []Term{
		{"limit", g.limit, "The estimate of which the enforced limit is the whole part."},
		{"baseline_seconds", g.baseline / 1e9, "The lowest RTT since the last probe."},
		{"gradient", g.gradient, "Tolerance times baseline over RTT, 0.5 to 1: the limit is multiplied by it."},
		{"queue_size", g.queue, "Units that a step adds."},
		{"probe_in_windows", until, "Windows until the limit falls to the queue size and the baseline is forgotten."},
		{"app_limited", truth(g.idle), "1 when less than half of the limit was in use, so that it stayed."},
	}
}
