package controller

import (
	"math"
	"math/rand/v2"
	"time"
)

// Vegas is the VegasLimit of Netflix's concurrency-limits, after TCP Vegas:
// it estimates the queue as limit x (1 - baseline / RTT) and keeps it between
// two marks. The baseline is the lowest RTT since the last probe, and a probe
// takes whatever RTT the next window has.
//
// Settings: initial 20, min 1, max 1000, smoothing 1, alpha
// "3*log10(limit)", beta "6*log10(limit)", threshold "log10(limit)",
// probe_multiplier 30 (a probe comes after 0.5 to 1 times so many times limit
// windows); windows of 1 s.
type Vegas struct {
	min, max   float64
	smoothing  float64
	alpha      Amount
	beta       Amount
	threshold  Amount
	step       Amount
	multiplier float64
	rng        rand.PCG
	pinned     float64 // jitter of every probe; 0: drawn

	limit    float64
	baseline time.Duration // 0 until measured
	jitter   float64
	count    int // steps since the last probe
	queue    float64
	idle     bool // app-limited in the last step
}

func newVegas(s *settings, p Params) (Stepper, frame) {
	initial, lo, hi := s.bounds(p, 20, 1, 1000, 1)
	v := &Vegas{
		min:        float64(lo),
		max:        float64(hi),
		smoothing:  s.share("smoothing", p.Smoothing, 1),
		alpha:      s.amount("alpha", p.Alpha, Amount{of: "log10", factor: 3}),
		beta:       s.amount("beta", p.Beta, Amount{of: "log10", factor: 6}),
		threshold:  s.amount("threshold", p.Threshold, Amount{of: "log10", factor: 1}),
		step:       Amount{of: "log10", factor: 1},
		multiplier: float64(number(s, "probe_multiplier", p.ProbeMultiplier, 30, 1, 1e9)),
		rng:        *rand.NewPCG(p.Seed, 2),
		limit:      float64(initial),
	}
	v.jitter = v.nextJitter()
	return v, frame{min: lo, max: hi, shortest: time.Second, longest: time.Second}
}

// PinProbes makes a probe come after exactly jitter times multiplier times
// limit steps, from now on. Jitter is above 0.
func (v *Vegas) PinProbes(jitter float64) { v.pinned, v.jitter = jitter, jitter }

func (v *Vegas) nextJitter() float64 {
	if v.pinned > 0 {
		return v.pinned
	}
	return 0.5 + uniform(&v.rng)/2
}

// OnSample takes one step.
func (v *Vegas) OnSample(s Sample) {
	if s.Warming {
		return
	}
	rtt := max(s.RTT, 1)
	v.count++
	if v.jitter*v.multiplier*v.limit <= float64(v.count) {
		v.jitter = v.nextJitter()
		v.count = 0
		v.baseline = rtt
		return
	}
	if v.baseline == 0 || rtt < v.baseline {
		v.baseline = rtt
		return
	}
	v.queue = math.Ceil(v.limit * (1 - float64(v.baseline)/float64(rtt)))
	v.idle = !s.Dropped && 2*float64(s.InFlight) < v.limit
	if v.idle {
		return
	}
	limit := max(v.min, min(v.max, v.next(s.Dropped)))
	limit = toward(v.limit, limit, v.smoothing)
	v.limit = toward(v.limit, limit, s.weight())
}

// next returns where the queue says that the limit should go.
func (v *Vegas) next(dropped bool) float64 {
	switch {
	case dropped:
		return v.limit - v.step.at(v.limit)
	case v.queue <= v.threshold.at(v.limit):
		return v.limit + v.beta.at(v.limit)
	case v.queue < v.alpha.at(v.limit):
		return v.limit + v.step.at(v.limit)
	case v.queue > v.beta.at(v.limit):
		return v.limit - v.step.at(v.limit)
	}
	return v.limit
}

// Limit returns the enforced limit: the estimate, truncated.
func (v *Vegas) Limit() int { return truncate(v.limit) }

// EstimatedLimit returns the limit before truncation.
func (v *Vegas) EstimatedLimit() float64 { return v.limit }

// Baseline returns the lowest RTT since the last probe, 0 when there was none.
func (v *Vegas) Baseline() time.Duration { return v.baseline }

// ProbeCount returns the steps since the last probe.
func (v *Vegas) ProbeCount() int { return v.count }

// Terms returns the state after the last step.
func (v *Vegas) Terms() []Term {
	gap := v.jitter * v.multiplier * v.limit
	return []Term{
		{"limit", v.limit, "The estimate of which the enforced limit is the whole part."},
		{"baseline_seconds", v.baseline.Seconds(), "The lowest RTT since the last probe, at first that of the probe itself."},
		{"queue_size", v.queue, "Units that are estimated to wait: limit times (1 - baseline over RTT)."},
		{"threshold", v.threshold.at(v.limit), "Up to this queue the limit grows by beta."},
		{"alpha", v.alpha.at(v.limit), "Below this queue the limit grows by one step."},
		{"beta", v.beta.at(v.limit), "Above this queue the limit shrinks by one step."},
		{"probe_in_windows", max(0, math.Ceil(gap)-float64(v.count)), "Windows until the baseline is measured anew."},
		{"app_limited", truth(v.idle), "1 when less than half of the limit was in use, so that it stayed."},
	}
}
