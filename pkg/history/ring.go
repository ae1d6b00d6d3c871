package history

import (
	"math"
	"time"

	"headgate/pkg/status"
)

// A series is one quantity of a target over time.
type series int

// The series. Counters are remembered as what they grew by a second.
const (
	limit series = iota
	inFlight
	waiting
	latency
	baseline
	admitted
	rejectedLimit
	rejectedPace
	rejectedSource
	rejectedFlood
	rejectedHoldTimeout
	wouldReject
	numSeries

	firstRate = admitted
)

// unknown is the value of a second in which there was none.
var unknown = float32(math.NaN())

// ring holds the newest points of a target. The point of a second is at the
// index second modulo Points.
type ring struct {
	rule, scope, unit, signal string
	port                      uint16

	begin       int64 // second of the first point ever: it has no rates
	first, last int64 // seconds with a point
	value       [numSeries]values
	totals      [numSeries]uint64

	changes []Change // the newest ones; the n-th is at the index n modulo maxChanges
	changed int      // how many there were
}

// values are those of a series. Most never change, such as what was refused by a
// rule that says nothing of it: memory for each second is taken once there are
// two that differ.
type values struct {
	begun  bool
	always float32 // while each is nil
	each   *[Points]float32
}

// set is called for each second, in their order.
func (v *values) set(second int64, x float32) {
	switch {
	case !v.begun:
		v.begun, v.always = true, x
		return
	case v.each == nil && (x == v.always || x != x && v.always != v.always):
		return
	case v.each == nil:
		v.each = new([Points]float32)
		for i := range v.each {
			v.each[i] = v.always
		}
	}
	v.each[second%Points] = x
}

func (v *values) get(second int64) float32 {
	if v.each == nil {
		return v.always
	}
	return v.each[second%Points]
}

func newRing(t *status.Target, second int64) *ring {
	r := &ring{begin: second, first: second, last: second - 1}
	r.totals = totals(t)
	return r
}

// add appends a point. elapsed is the time since the one before.
func (r *ring) add(second int64, elapsed time.Duration, t *status.Target) {
	for missed := max(r.last+1, second-Points+1); missed < second; missed++ {
		for s := range r.value {
			r.value[s].set(missed, unknown)
		}
	}
	r.rule, r.scope, r.port, r.unit, r.signal = t.Rule, t.Scope, t.Port, t.Unit, t.Signal
	r.last = second
	r.first = max(r.first, second-Points+1)

	r.value[limit].set(second, float32(t.Limit))
	r.value[inFlight].set(second, float32(t.InFlight))
	r.value[waiting].set(second, float32(t.Waiting))
	mean, base := unknown, unknown
	if t.Window.Samples > 0 {
		mean = float32(t.Window.MeanSeconds)
	}
	if t.BaselineSeconds > 0 {
		base = float32(t.BaselineSeconds)
	}
	r.value[latency].set(second, mean)
	r.value[baseline].set(second, base)
	if second == r.begin {
		return
	}
	now := totals(t)
	for s := firstRate; s < numSeries; s++ {
		// A total that is smaller than before counts anew.
		grown := now[s]
		if now[s] >= r.totals[s] {
			grown -= r.totals[s]
		}
		r.value[s].set(second, float32(float64(grown)/elapsed.Seconds()))
	}
	r.totals = now
}

// totals are the counters of a target by the series that they make.
func totals(t *status.Target) (c [numSeries]uint64) {
	c[admitted] = t.AdmittedTotal
	c[rejectedLimit] = t.RejectedTotal.Limit
	c[rejectedPace] = t.RejectedTotal.Pace
	c[rejectedSource] = t.RejectedTotal.Source
	c[rejectedFlood] = t.RejectedTotal.Flood
	c[rejectedHoldTimeout] = t.RejectedTotal.HoldTimeout
	c[wouldReject] = t.WouldRejectTotal
	return c
}

// get returns the newest points of a series, oldest first.
func (r *ring) get(s series, points int) Values {
	first := max(r.first, r.last-int64(points)+1)
	v := make(Values, 0, r.last-first+1)
	for second := first; second <= r.last; second++ {
		x := r.value[s].get(second)
		if s >= firstRate && second == r.begin {
			x = unknown
		}
		v = append(v, x)
	}
	return v
}

// latest returns the newest changes of the limit, oldest first.
func (r *ring) latest() []Change {
	kept := make([]Change, 0, maxChanges)
	for i := max(r.changed-maxChanges, 0); i < r.changed; i++ {
		kept = append(kept, r.changes[i%maxChanges])
	}
	return kept
}
