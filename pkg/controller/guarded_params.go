package controller

import (
	"errors"
	"fmt"
	"time"
)

// GuardedParams are the settings of the guarded algorithm. The zero value is
// not valid; begin with [DefaultGuardedParams].
type GuardedParams struct {
	// Initial is the limit until the first measurement, in units. It lies in
	// [Min, Max]. Default 20.
	Initial int

	// Min and Max bound the limit, in units; 1 <= Min <= Max. Defaults 1 and
	// 65536. Only a probe goes below Min, down to ProbeFloor.
	Min, Max int

	// Window is the least length of a measuring window; 1 ms to 1 min,
	// default 100 ms. A window is longer when a round trip is, or when it has
	// fewer than ten samples.
	Window time.Duration

	// Burst is the allowance above the limit while nothing is refused, in
	// multiples of what the target carries at its busiest (units a second
	// times the baseline); 0 to 1000, default 7. 0 allows none.
	Burst float64

	// Dither is the share of the limit by which it is moved up and down under
	// pressure, to learn whether a larger limit completes more; 0 to 0.5,
	// default 0.1. 0 turns it off, and the headroom stays at its largest.
	Dither float64

	// ProbeMin and ProbeMax bound the time between probes under lasting
	// pressure; 100 ms <= ProbeMin <= ProbeMax. Defaults 2 s and 60 s. Where
	// ten times the length of a probe is more, that counts.
	ProbeMin, ProbeMax time.Duration

	// ProbeFloor is the smallest limit that a probe may ask for, in units; at
	// least 1, default 1. It is not Min: a floor that holds a queue in place
	// would hide from every probe that there is one.
	ProbeFloor int

	// MaxBaseline is the longest baseline that is ever believed, default 0:
	// no bound. Set it where what is normal is known: an overload that was
	// there before the agent was cannot be told from a slow target.
	MaxBaseline time.Duration

	// Seed varies the times of the probes (by 10 %), so that targets that
	// were started together do not probe together for ever. Default 1.
	Seed uint64
}

// DefaultGuardedParams returns the defaults given at each field.
func DefaultGuardedParams() GuardedParams {
	return GuardedParams{
		Initial:    20,
		Min:        1,
		Max:        65536,
		Window:     100 * time.Millisecond,
		Burst:      7,
		Dither:     0.1,
		ProbeMin:   2 * time.Second,
		ProbeMax:   60 * time.Second,
		ProbeFloor: 1,
		Seed:       1,
	}
}

// Validate returns every setting that is out of its range, joined, each with
// its key as the configuration spells it; nil when there is none.
func (p GuardedParams) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(p.Min >= 1, "min: %d is less than 1", p.Min)
	check(p.Max >= p.Min, "max: %d is less than min (%d)", p.Max, p.Min)
	check(p.Max <= 1<<30, "max: %d is more than %d", p.Max, 1<<30)
	check(p.Initial >= p.Min && p.Initial <= p.Max,
		"initial: %d is not between min (%d) and max (%d)", p.Initial, p.Min, p.Max)
	check(p.Window >= time.Millisecond && p.Window <= time.Minute,
		"window: %v is not between 1ms and 1m", p.Window)
	check(p.Burst >= 0 && p.Burst <= 1000, "burst: %v is not between 0 and 1000", p.Burst)
	check(p.Dither >= 0 && p.Dither <= 0.5, "dither: %v is not between 0 and 0.5", p.Dither)
	check(p.ProbeMin >= 100*time.Millisecond, "probe_min: %v is less than 100ms", p.ProbeMin)
	check(p.ProbeMax >= p.ProbeMin, "probe_max: %v is less than probe_min (%v)", p.ProbeMax, p.ProbeMin)
	check(p.ProbeFloor >= 1 && p.ProbeFloor <= p.Max,
		"probe_floor: %d is not between 1 and max (%d)", p.ProbeFloor, p.Max)
	check(p.MaxBaseline >= 0, "max_baseline: %v is negative", p.MaxBaseline)
	return errors.Join(errs...)
}
