package history

import (
	"math"
	"slices"
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
	rejectedHoldTimeout
	wouldReject
	numSeries

	firstRate = admitted
)

// slack is how late a point may be taken after the state that it tells of.
const slack = Interval / 5

// unknown is the value of a second in which there was none.
var unknown = float32(math.NaN())

// ring holds the newest points of a target. The point of a second is at the
// index second modulo Points.
type ring struct {
	rule, scope, unit, signal string
	port                      uint16

	begin       int64 // second of the first point ever: it has no rates
	first, last int64 // seconds with a point
	value       [numSeries][Points]float32
	reason      [Points]uint8 // why the limit changed in that second; 0: it did not
	totals      [numSeries]uint64
}

func newRing(t *status.Target, second int64) *ring {
	r := &ring{begin: second, first: second, last: second - 1}
	r.totals = totals(t)
	return r
}

// add appends a point. elapsed is the time since the one before.
func (r *ring) add(second int64, elapsed time.Duration, t *status.Target, reason uint8) {
	for missed := max(r.last+1, second-Points+1); missed < second; missed++ {
		at := missed % Points
		for s := range r.value {
			r.value[s][at] = unknown
		}
		r.reason[at] = 0
	}
	r.rule, r.scope, r.port, r.unit, r.signal = t.Rule, t.Scope, t.Port, t.Unit, t.Signal
	r.last = second
	r.first = max(r.first, second-Points+1)

	at := second % Points
	r.value[limit][at] = float32(t.Limit)
	r.value[inFlight][at] = float32(t.InFlight)
	r.value[waiting][at] = float32(t.Waiting)
	r.value[latency][at], r.value[baseline][at] = unknown, unknown
	if t.Window.Samples > 0 {
		r.value[latency][at] = float32(t.Window.MeanSeconds)
	}
	if t.BaselineSeconds > 0 {
		r.value[baseline][at] = float32(t.BaselineSeconds)
	}
	now := totals(t)
	for s := firstRate; s < numSeries; s++ {
		if second == r.begin {
			r.value[s][at] = unknown
			continue
		}
		// A total that is smaller than before counts anew.
		grown := now[s]
		if now[s] >= r.totals[s] {
			grown -= r.totals[s]
		}
		r.value[s][at] = float32(float64(grown) / elapsed.Seconds())
	}
	r.totals = now
	// The limit also moves with the connections that are only kept open, which
	// has no reason of the algorithm's.
	r.reason[at] = 0
	if before, ok := r.limitBefore(second); ok && before != r.value[limit][at] &&
		t.LastChange.SecondsAgo < (elapsed+slack).Seconds() {
		r.reason[at] = reason
	}
}

// limitBefore is the last limit that is known from before a second.
func (r *ring) limitBefore(second int64) (float32, bool) {
	for second--; second >= r.first; second-- {
		if v := r.value[limit][second%Points]; v == v {
			return v, true
		}
	}
	return 0, false
}

// totals are the counters of a target by the series that they make.
func totals(t *status.Target) (c [numSeries]uint64) {
	c[admitted] = t.AdmittedTotal
	c[rejectedLimit] = t.RejectedTotal.Limit
	c[rejectedPace] = t.RejectedTotal.Pace
	c[rejectedSource] = t.RejectedTotal.Source
	c[rejectedHoldTimeout] = t.RejectedTotal.HoldTimeout
	c[wouldReject] = t.WouldRejectTotal
	return c
}

// get returns the newest points of a series, oldest first.
func (r *ring) get(s series, points int) Values {
	first := max(r.first, r.last-int64(points)+1)
	v := make(Values, 0, r.last-first+1)
	for second := first; second <= r.last; second++ {
		v = append(v, r.value[s][second%Points])
	}
	return v
}

// changes returns the newest changes of the limit, oldest first.
func (r *ring) changes(points int, reasons []string) []Change {
	first := max(r.first, r.last-int64(points)+1)
	changes := []Change{}
	for second := r.last; second >= first && len(changes) < maxChanges; second-- {
		at := second % Points
		if r.reason[at] == 0 {
			continue
		}
		c := Change{Second: second, To: int(r.value[limit][at]), Reason: reasons[r.reason[at]]}
		if from, ok := r.limitBefore(second); ok {
			c.From = new(int(from))
		}
		changes = append(changes, c)
	}
	slices.Reverse(changes)
	return changes
}
