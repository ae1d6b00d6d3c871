// Package controller computes how many units may be in flight on a target.
//
// The algorithms are pure: they own no clock, start no goroutine, allocate
// nothing per step and import nothing of headgate but the histogram of
// package rtt. The loop in this package feeds them what the kernel counted.
package controller

import (
	"time"

	"headgate/pkg/rtt"
)

// Tick is what one target did since the tick before. Times are on one
// monotonic clock with an arbitrary origin.
type Tick struct {
	// Now is the end of the tick.
	Now time.Duration

	// Samples and Sum are the number of latency samples that arrived since
	// the last tick, and their sum.
	Samples uint64
	Sum     time.Duration

	// Histogram holds the same samples by size; nil when only the sum is known.
	Histogram *rtt.Histogram

	// MaxInFlight is the most units in flight at one moment since the last tick.
	MaxInFlight int

	// Refused counts rejections and holds that timed out since the last tick;
	// it is not 0 either when a unit had to wait for want of a slot.
	// While Observing it counts what would have been refused.
	Refused uint64

	// Observing says that decisions are not put in force, so that nothing is
	// to be learned from what follows them.
	Observing bool

	// Dropped counts units that were lost since the last tick though this
	// gate let them in, such as overflows of the accept queue; 0 when unknown.
	Dropped uint64

	// Cohort is the state of the probe that the last Decision asked for.
	Cohort Cohort
}

// Cohort is the group of units that a probe times: the first Size units
// admitted after it was asked for. The zero Cohort means no probe.
type Cohort struct {
	Epoch    uint32        // the Epoch of the Decision that asked for it
	Admitted int           // units of it admitted so far
	Done     int           // of these, finished
	Sum      time.Duration // of the latencies of the finished
	Ages     time.Duration // sum of the ages of the unfinished, at Tick.Now
}

// Decision is what the kernel is to enforce until the next one.
type Decision struct {
	// Limit is the most units that may be in flight.
	Limit int

	// AfterRefusal is the limit from the first refusal on, which the kernel
	// puts in force by itself. It equals Limit unless a burst allowance is.
	AfterRefusal int

	// CohortEpoch and CohortSize ask for a new cohort when the epoch differs
	// from the one before; size 0 asks for none.
	CohortEpoch uint32
	CohortSize  int

	// Reason is why the limit was changed last. It stays while the limit does.
	Reason Reason
}

// Algorithm turns ticks into decisions. Implementations are not safe for
// concurrent use. The limit they return is always within the configured
// bounds and finite, whatever the ticks hold; only a probe of guarded goes below
// min, down to its own floor.
type Algorithm interface {
	// Decide takes in a tick and returns what is to be enforced from now on.
	// It is called at regular, short intervals (the window of the
	// configuration); an algorithm that wants a longer window gathers ticks.
	Decide(Tick) Decision

	// Terms returns the algorithm's state in named numbers, for status and
	// explain. Durations are in seconds. It may allocate.
	Terms() []Term
}

// Term is one named quantity of an algorithm's last step.
type Term struct {
	Name  string  // snake_case, for example "baseline_seconds"
	Value float64 // in the unit that the name ends in
	Words string  // what it means, one sentence
}
