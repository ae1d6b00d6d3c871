// Package pace decides when an arrival may pass so that admissions keep a rate.
//
// A wait that is decided is not slept here: the caller holds the arrival. No
// type of this package reads a clock or is safe for concurrent use, except
// for [Slots].
package pace

import (
	"math"
	"sync/atomic"
	"time"
)

// The rates that can be paced, in units a second. Over all of them an
// interval is exact to 0.05 %.
const (
	MinRate = 0.001
	MaxRate = 1e6
)

// Interval returns the time from one admission to the next at a rate, in
// nanoseconds. A rate out of range, NaN included, counts as the nearest one
// that is in it.
func Interval(rate float64) uint64 {
	if !(rate > MinRate) {
		rate = MinRate
	}
	return uint64(math.Round(1e9 / min(rate, MaxRate)))
}

// AutoRate returns the rate at which a limit is just kept busy, by Little's
// law: headroom x limit / mean time in flight, within MinRate and MaxRate.
// Without a mean there is nothing to go by, and it returns MaxRate.
func AutoRate(limit int, mean time.Duration, headroom float64) float64 {
	if mean <= 0 {
		return MaxRate
	}
	rate := headroom * float64(limit) / mean.Seconds()
	if !(rate > MinRate) {
		return MinRate
	}
	return min(rate, MaxRate)
}

// NextSlot returns the slot of an arrival at now, in nanoseconds, or not ok
// when it would have to wait for longer than maxWait. An arrival whose slot is
// not after now passes at once. last is the slot given out last and 0 before
// the first; the arrival takes the slot by replacing last with it.
//
// The schedule may lag behind the clock by credit: with n - 1 intervals of it,
// n arrivals pass at the same moment after an idle time. This is the virtual
// scheduling of ITU-T I.371, where credit is the cell delay variation
// tolerance. With 0 idle time earns nothing. An arrival that is refused moves
// nothing. last and not the next free slot is what is kept, so that a new
// interval holds at once and not only after a wait of the old one.
//
// This is the arithmetic of the kernel program: unsigned 64-bit, without a
// division, and defined for every input. now is never 0 there, and before 1
// nothing is earned.
func NextSlot(last, now, interval, credit, maxWait uint64) (slot uint64, ok bool) {
	earliest := uint64(1)
	if now > credit {
		earliest = now - credit
	}
	if last == 0 {
		return earliest, true
	}
	slot = last + interval
	if slot < last { // beyond the end of time
		return 0, false
	}
	slot = max(slot, earliest)
	return slot, slot <= now || slot-now <= maxWait
}

// Slots gives out slots to several callers at once, as the processors of a
// machine do. The zero value has given out none.
type Slots struct{ last atomic.Uint64 }

// Take takes the next slot. The arguments and results are those of [NextSlot].
func (s *Slots) Take(now, interval, credit, maxWait uint64) (slot uint64, ok bool) {
	for {
		last := s.last.Load()
		slot, ok = NextSlot(last, now, interval, credit, maxWait)
		if !ok || s.last.CompareAndSwap(last, slot) {
			return slot, ok
		}
	}
}
