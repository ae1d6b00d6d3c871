package pace

import "time"

// RateGate refuses what would be more than so many units in about a second,
// without any wait: Sentinel's DefaultController by rate. It looks at the
// current half second and the one before.
type RateGate struct {
	count  float64
	halves meter
}

// NewRateGate returns a RateGate for count units a second.
func NewRateGate(count float64) *RateGate {
	return &RateGate{count: count, halves: newMeter(half, 2)}
}

// Take asks for n units at now. Times do not go back.
func (g *RateGate) Take(now time.Duration, n int) (ok bool) {
	if float64(g.halves.lately(now)+int64(n)) > g.count {
		return false
	}
	g.halves.add(now, n)
	return true
}

// CountGate refuses what would be more than so many inside: Sentinel's
// DefaultController by threads.
type CountGate struct {
	count  float64
	inside int
}

// NewCountGate returns a CountGate for count units inside.
func NewCountGate(count float64) *CountGate { return &CountGate{count: count} }

// Enter asks for room for n. What passes counts as one whatever n is.
func (g *CountGate) Enter(n int) (ok bool) {
	if float64(g.inside+n) > g.count {
		return false
	}
	g.inside++
	return true
}

// Leave lets one out.
func (g *CountGate) Leave() { g.inside = max(g.inside-1, 0) }

// Inside returns how many are inside.
func (g *CountGate) Inside() int { return g.inside }
