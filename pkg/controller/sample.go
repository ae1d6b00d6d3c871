package controller

import "time"

// Sample is what one window, or one raw measurement, tells an algorithm.
type Sample struct {
	// RTT is the mean or percentile of the window.
	RTT time.Duration

	// InFlight is the most units in flight at one moment of the window.
	InFlight int

	// Dropped says that units were lost, not that this gate refused any.
	Dropped bool

	// Count and Span are the number of measurements and the length of the
	// window. Span 0 counts as 1 ns.
	Count uint64
	Span  time.Duration

	// Weight is the share of a full step that the window is worth, 0 to 1.
	Weight float64

	// Warming says that no baseline is to be recorded yet.
	Warming bool
}

// Stepper is the arithmetic of an algorithm that takes one step a sample.
type Stepper interface {
	// OnSample takes one step.
	OnSample(Sample)

	// Limit is the limit after the last step. It may lie outside the
	// configured bounds where that of the reference does; [Windowed] sees to
	// that.
	Limit() int

	// Terms returns the state after the last step. It may allocate.
	Terms() []Term
}

// rtt returns the RTT in nanoseconds, at least 1.
func (s *Sample) rtt() float64 { return float64(max(s.RTT, 1)) }

// weight returns the weight within 0 to 1.
func (s *Sample) weight() float64 {
	if !(s.Weight > 0) {
		return 0
	}
	return min(s.Weight, 1)
}

// toward returns the point that is share of the way from one value to
// another. A whole step ends exactly at the other. The conversions keep the
// compiler from fusing operations, so that all machines agree.
func toward(from, to, share float64) float64 {
	if share >= 1 {
		return to
	}
	return float64(from*(1-share)) + float64(to*share)
}
