package pace

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Schedule says how a Pacer paces.
type Schedule struct {
	// Count is how many units may pass in Per. 0 lets nothing pass.
	Count float64

	// Per is what Count refers to; 0 means a second.
	Per time.Duration

	// MaxWait is the longest wait that is still accepted, from 0.
	MaxWait time.Duration

	// Quantum is what times are counted in; 0 means 1 ns. Sentinel counts in
	// milliseconds where [SentinelQuantum] says so, and to follow it one has
	// to round as it does.
	Quantum time.Duration
}

// SentinelQuantum returns what Sentinel's ThrottlingController counts in: ms
// where the rounded count divides the period and is at most one a ms.
func SentinelQuantum(count float64, per time.Duration) time.Duration {
	n, ms := roundHalfUp(count), per.Milliseconds()
	if n <= 0 || ms%n != 0 || count/float64(ms) > 1 {
		return 1
	}
	return time.Millisecond
}

// Pacer admits one unit each interval: the schedule of Sentinel's
// ThrottlingController.
type Pacer struct {
	count   float64 // per period
	period  float64 // in quanta
	quantum time.Duration
	maxWait uint64 // in quanta
	last    uint64 // slot given out last, in quanta, for NextSlot
}

// NewPacer returns a Pacer that has admitted nothing yet.
func NewPacer(s Schedule) (*Pacer, error) {
	if s.Per == 0 {
		s.Per = time.Second
	}
	if s.Quantum == 0 {
		s.Quantum = 1
	}
	switch {
	case !(s.Count >= 0) || math.IsInf(s.Count, 0):
		return nil, fmt.Errorf("count: %v is not a number from 0", s.Count)
	case s.Per < 0 || s.Quantum < 0:
		return nil, errors.New("a period is negative")
	case s.MaxWait < 0:
		return nil, fmt.Errorf("max_wait: %v is negative", s.MaxWait)
	}
	return &Pacer{
		count:   s.Count,
		period:  float64(s.Per / s.Quantum),
		quantum: s.Quantum,
		maxWait: uint64(s.MaxWait / s.Quantum),
	}, nil
}

// Take asks for n units at now, on a clock that does not go below 0. When ok,
// they pass after the wait. n <= 0 always passes and moves nothing.
func (p *Pacer) Take(now time.Duration, n int) (wait time.Duration, ok bool) {
	if n <= 0 {
		return 0, true
	}
	if p.count <= 0 {
		return 0, false
	}
	return p.take(now, roundHalfUp(p.period*float64(n)/p.count))
}

// take asks for a slot that lies cost quanta after the one before.
func (p *Pacer) take(now time.Duration, cost int64) (wait time.Duration, ok bool) {
	t := uint64(max(now, 0)/p.quantum) + 1 // 0 is no slot
	slot, ok := NextSlot(p.last, t, uint64(max(cost, 0)), 0, p.maxWait)
	if !ok {
		return 0, false
	}
	p.last = slot
	return time.Duration(slot-t) * p.quantum, true
}

// roundHalfUp rounds to the nearest integer, halves up, within int64.
func roundHalfUp(x float64) int64 {
	r := math.Floor(x)
	if x-r >= 0.5 {
		r++
	}
	switch {
	case r >= math.MaxInt64:
		return math.MaxInt64
	case !(r > math.MinInt64):
		return math.MinInt64
	}
	return int64(r)
}
