package config

import (
	"strconv"
	"time"
)

// End says when a request is over. The zero value is its response's first
// byte.
type End struct {
	// Idle is how long the output has to be idle; 0 for first_byte.
	Idle time.Duration
}

// String returns "first_byte" or "idle 20ms".
func (e End) String() string {
	if e.Idle == 0 {
		return "first_byte"
	}
	return "idle " + e.Idle.String()
}

// Hold says how units wait that find the limit reached.
type Hold struct {
	// MaxWait is the longest wait for a free slot, 0s to 1h, counted from the
	// arrival, or from the pace slot of a unit that has one. After that the
	// unit is refused. With 0s none waits for a free slot. A client has a
	// timeout of its own: stay well below it.
	MaxWait time.Duration `yaml:"max_wait"`

	// MaxWaiting is the most units of a target that wait at once, for a free
	// slot or by the pace, 1 to 16384. What arrives beyond is refused. The
	// kernel has room for 16384 connections that wait on all targets together.
	MaxWaiting int `yaml:"max_waiting"`

	// Order is who has the next free slot: fifo, the one that has waited
	// longest, or lifo, the one that came last. Under an overload that lasts
	// fifo makes everybody wait for about MaxWait, where with lifo most wait
	// shortly and the rest in vain.
	Order Order `yaml:"order"`
}

// Pace spreads admissions over time.
type Pace struct {
	// Rate is how many units are admitted a second, at even intervals: 0.001
	// to 1000000; or auto, what keeps the limit just busy: Headroom x limit /
	// mean time in flight (Little's law), computed anew in each window; or
	// none.
	Rate Rate `yaml:"rate"`

	// Burst is how many units may be admitted at the same moment, 1 to 100000:
	// as many intervals of idle time are made up for. With 1 idle time earns
	// nothing, and there are no bursts. As many as the rate admits in a second
	// make it an ordinary limit of the rate, where max_wait is 0s.
	Burst int `yaml:"burst"`

	// MaxWait is the longest wait for a slot of the pace, 0s to 1h. A unit
	// whose slot is farther off is refused, and takes none. With 0s whoever
	// comes sooner than an interval after the one before is refused, unless
	// Burst lets it in.
	MaxWait time.Duration `yaml:"max_wait"`

	// Headroom is the factor of rate: auto, 0.1 to 10. Above 1 it is the limit
	// that decides on a busy target, and the pace only smooths; below 1 the
	// limit is hardly ever reached, and an algorithm that adapts it has little
	// to go by.
	Headroom float64 `yaml:"headroom"`

	// WarmUp brings a cold target up to its rate: one that was started, or has
	// had little to do. Not with rate: auto, which begins at the initial limit
	// and rises with it.
	WarmUp Ramp `yaml:"warm_up"`
}

// Ramp is how a cold target is brought up to its rate.
type Ramp struct {
	// Period is about how long the way up takes, 1s to 24h, or 0s: there is no
	// warm-up. It must have room for as many units as ColdFactor - 1.
	Period time.Duration `yaml:"period"`

	// ColdFactor is by how many times the coldest target is slower than its
	// rate, 2 to 1000. A target whose rate is below so many units a second is
	// cold once, at its start, and not again.
	ColdFactor int `yaml:"cold_factor"`
}

// Rate is the rate of a pace. The zero value is none.
type Rate struct {
	PerSecond float64 // units a second; 0 for none or auto
	Auto      bool    // follows the limit
}

// String returns the rate as it is written in a file.
func (r Rate) String() string {
	switch {
	case r.Auto:
		return "auto"
	case r.PerSecond == 0:
		return "none"
	}
	return decimal(r.PerSecond)
}

// decimal formats without an exponent.
func decimal(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// Paced reports whether the rule has a pace.
func (r *Rule) Paced() bool { return r.Pace.Rate != Rate{} }

// Waits reports whether a unit can have to wait, for a free slot or for its
// turn in the pace. If not, Hold.MaxWaiting and Hold.Order mean nothing.
func (r *Rule) Waits() bool {
	return r.Hold.MaxWait > 0 || r.Paced() && r.Pace.MaxWait > 0
}

// NeedsIngress reports whether the rule needs the programs on the devices of
// its scope: only there can a packet be held or dropped, or a request be seen
// before the application has it.
func (r *Rule) NeedsIngress() bool {
	return r.Unit == UnitRequest || r.Reject == RejectDrop || r.Waits()
}

// Order names who is next among those that wait.
type Order string

const (
	OrderFIFO Order = "fifo"
	OrderLIFO Order = "lifo"
)
