package controller

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// maxLimit is the highest limit that may be configured. The kernel counts in
// 32 bits; this leaves room for an arithmetic slip.
const maxLimit = 1 << 30

// Params are the settings of a named algorithm, as the configuration spells
// them. nil means the algorithm's default, which is given at its type. A
// setting that the algorithm does not have is an error, not ignored.
type Params struct {
	// Initial is the limit until the first measurement, in units, between Min
	// and Max; for fixed, the limit.
	Initial *int `yaml:"initial"`

	// Min and Max bound the limit, in units: 1 <= Min <= Max <= 2^30. Min may
	// be 0 for fixed.
	Min *int `yaml:"min"`
	Max *int `yaml:"max"`

	// MinWindow and MaxWindow bound the length of a window, 1ms to 1h, by
	// default 1s both, 100ms both for blog. Within them it is twice the
	// shortest RTT of the window before.
	MinWindow *time.Duration `yaml:"min_window"`
	MaxWindow *time.Duration `yaml:"max_window"`

	// WindowSize is how many samples make a full window, 1 to 1e6, default 10.
	WindowSize *int `yaml:"window_size"`

	// FewSamples says what becomes of a window with fewer: weigh (default)
	// extends it to at most 1 s and takes a step in proportion to its
	// samples, drop throws it away as the reference limiters do.
	FewSamples *FewSamples `yaml:"few_samples"`

	// SampleWindow is what a window passes on: average (default) or percentile.
	SampleWindow *SampleWindow `yaml:"sample_window"`

	// Percentile is the share of samples below the one that is passed on,
	// above 0 to 1, default 0.9. Only with sample_window: percentile.
	Percentile *float64 `yaml:"percentile"`

	// PercentileCapacity is how many observations a percentile window keeps
	// where no histogram is at hand, 1 to 1e6, default 1000. Later ones in
	// the same window are ignored. Only with sample_window: percentile.
	PercentileCapacity *int `yaml:"percentile_capacity"`

	// MinRTTThreshold is the RTT below which a sample is ignored, 0 to 1h,
	// default 0: none is. The reference limiters have 100us.
	MinRTTThreshold *time.Duration `yaml:"min_rtt_threshold"`

	// WarmUp is how long after the first tick no baseline is recorded and the
	// limit stays at Initial; 0 to 1h. Default 60s for blog, else 0.
	WarmUp *time.Duration `yaml:"warm_up"`

	// Smoothing is the share of a new estimate in the next limit, above 0 to
	// 1; of a new latency in the average for blog.
	Smoothing *float64 `yaml:"smoothing"`

	// QueueSize is how many units the limit may grow a step while there is no
	// queue: a number, or a function of the limit.
	QueueSize *Amount `yaml:"queue_size"`

	// LongWindow is the time constant of the long RTT, 1ms to 10000h, or a
	// number of windows, 1 to 1e9.
	LongWindow *Horizon `yaml:"long_window"`

	// RTTTolerance is how many times the baseline the RTT may be before the
	// limit falls, 1 to 1000.
	RTTTolerance *float64 `yaml:"rtt_tolerance"`

	// BackoffRatio is what a drop multiplies the limit by, 0.5 to 1.
	BackoffRatio *float64 `yaml:"backoff_ratio"`

	// ProbeInterval is the number of windows between probes of gradient, 1 to
	// 1e9, or -1: never.
	ProbeInterval *int `yaml:"probe_interval"`

	// Timeout is the RTT that aimd takes for a drop, 1ns to 1h.
	Timeout *time.Duration `yaml:"timeout"`

	// Alpha, Beta and Threshold are the queue sizes of vegas: the limit grows
	// fast up to Threshold, slowly below Alpha and shrinks above Beta.
	Alpha     *Amount `yaml:"alpha"`
	Beta      *Amount `yaml:"beta"`
	Threshold *Amount `yaml:"threshold"`

	// ProbeMultiplier is the number of windows between probes of vegas, in
	// multiples of the limit; 1 to 1e9.
	ProbeMultiplier *int `yaml:"probe_multiplier"`

	// Growth is the unit of throughput that blog adds to the limit.
	Growth *Growth `yaml:"growth"`

	// Window, Burst, Dither, ProbeMin, ProbeMax, ProbeFloor and MaxBaseline
	// are settings of guarded: see [GuardedParams].
	Window      *time.Duration `yaml:"window"`
	Burst       *float64       `yaml:"burst"`
	Dither      *float64       `yaml:"dither"`
	ProbeMin    *time.Duration `yaml:"probe_min"`
	ProbeMax    *time.Duration `yaml:"probe_max"`
	ProbeFloor  *int           `yaml:"probe_floor"`
	MaxBaseline *time.Duration `yaml:"max_baseline"`

	// Seed varies the times of probes, so that targets that were started
	// together do not probe together for ever. Not a key of the
	// configuration.
	Seed uint64 `yaml:"-"`
}

// ParamError says what is wrong with one setting.
type ParamError struct {
	Key    string // as the configuration spells it
	Reason string // with the valid range
}

func (e *ParamError) Error() string { return e.Key + ": " + e.Reason }

// settings resolves Params against an algorithm's defaults and ranges, and
// keeps every error and every key that was asked for.
type settings struct {
	asked map[string]bool
	errs  []error

	anyInitial bool // an initial limit out of bounds is allowed
}

func newSettings() *settings { return &settings{asked: map[string]bool{}} }

func (s *settings) fail(key, format string, args ...any) {
	s.errs = append(s.errs, &ParamError{Key: key, Reason: fmt.Sprintf(format, args...)})
}

// number resolves a number or duration that must lie in [lo, hi]. NaN does not.
func number[T int | float64 | time.Duration](s *settings, key string, v *T, def, lo, hi T) T {
	s.asked[key] = true
	if v == nil {
		return def
	}
	if !(*v >= lo && *v <= hi) {
		s.fail(key, "%v is not from %v to %v", *v, lo, hi)
		return def
	}
	return *v
}

// share resolves a number that must lie in (0, 1].
func (s *settings) share(key string, v *float64, def float64) float64 {
	s.asked[key] = true
	if v == nil {
		return def
	}
	if !(*v > 0 && *v <= 1) {
		s.fail(key, "%v is not above 0 and up to 1", *v)
		return def
	}
	return *v
}

func word[T interface {
	~string
	check() error
}](s *settings, key string, v *T, def T) T {
	s.asked[key] = true
	if v == nil {
		return def
	}
	if err := (*v).check(); err != nil {
		s.fail(key, "%v", err)
		return def
	}
	return *v
}

func (s *settings) amount(key string, v *Amount, def Amount) Amount {
	s.asked[key] = true
	if v == nil {
		return def
	}
	return *v
}

func (s *settings) horizon(key string, v *Horizon, def Horizon) Horizon {
	s.asked[key] = true
	if v == nil {
		return def
	}
	return *v
}

// only refuses a setting that says nothing without another.
func (s *settings) only(key string, given bool, with string) {
	s.asked[key] = true
	if given {
		s.fail(key, "only with %s", with)
	}
}

// bounds resolves initial, min and max. A default gives way to a bound that
// was set; two settings that contradict each other are an error.
func (s *settings) bounds(p Params, initial, least, most, floor int) (int, int, int) {
	lo := number(s, "min", p.Min, least, floor, maxLimit)
	hi := number(s, "max", p.Max, max(most, lo), max(floor, 1), maxLimit)
	if hi < lo {
		if p.Min != nil {
			s.fail("max", "%d is less than min (%d)", hi, lo)
		}
		lo = hi
	}
	s.asked["initial"] = true
	if p.Initial == nil {
		return min(max(initial, lo), hi), lo, hi
	}
	if s.anyInitial {
		return number(s, "initial", p.Initial, lo, 0, maxLimit), lo, hi
	}
	if *p.Initial < lo || *p.Initial > hi {
		s.fail("initial", "%d is not from %d to %d (min to max)", *p.Initial, lo, hi)
	}
	return *p.Initial, lo, hi
}

// err returns what was wrong, after a look for settings nobody asked for.
func (s *settings) err(algorithm string, p Params) error {
	v := reflect.ValueOf(p)
	for i := range v.NumField() {
		key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		if f := v.Field(i); key != "-" && f.Kind() == reflect.Pointer && !f.IsNil() && !s.asked[key] {
			s.fail(key, "not a setting of %s", algorithm)
		}
	}
	return errors.Join(s.errs...)
}
