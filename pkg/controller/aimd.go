package controller

import (
	"math"
	"time"
)

// AIMD is the AIMDLimit of Netflix's concurrency-limits: one unit more each
// step, a fixed share less when something was dropped or took too long. It
// works as well as its timeout fits the target.
//
// Settings: initial 20, min 20, max 200, backoff_ratio 0.9 (below 1),
// timeout 5s; windows of 1 s.
type AIMD struct {
	min, max float64
	ratio    float64
	timeout  time.Duration

	limit   float64
	backoff bool // the last step went down
	slow    bool // and that for a timeout
}

func newAIMD(s *settings, p Params) (Stepper, frame) {
	initial, lo, hi := s.bounds(p, 20, 20, 200, 1)
	a := &AIMD{
		min:     float64(lo),
		max:     float64(hi),
		ratio:   number(s, "backoff_ratio", p.BackoffRatio, 0.9, 0.5, math.Nextafter(1, 0)),
		timeout: number(s, "timeout", p.Timeout, 5*time.Second, 1, time.Hour),
		limit:   float64(initial),
	}
	return a, frame{min: lo, max: hi, shortest: time.Second, longest: time.Second}
}

// OnSample takes one step.
func (a *AIMD) OnSample(s Sample) {
	if s.Warming {
		return
	}
	limit := a.limit
	a.slow = s.RTT > a.timeout
	a.backoff = s.Dropped || a.slow
	if a.backoff {
		limit = math.Trunc(limit * a.ratio)
	} else if 2*float64(s.InFlight) >= limit {
		limit++
	}
	a.limit = toward(a.limit, min(a.max, max(a.min, limit)), s.weight())
}

// special is why the last step moved the limit, where that is not the RTT.
func (a *AIMD) special() Reason {
	if a.slow {
		return ReasonTimeout
	}
	return ReasonNone
}

// Limit returns the limit.
func (a *AIMD) Limit() int { return truncate(a.limit) }

// Terms returns the state after the last step.
func (a *AIMD) Terms() []Term {
	return []Term{
		{"limit", a.limit, "One unit more each window that needs it, less after a drop or a timeout."},
		{"timeout_seconds", a.timeout.Seconds(), "Latency that counts as a drop."},
		{"backoff", truth(a.backoff), "1 when the last step went down."},
	}
}
