package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"headgate/pkg/controller"
)

// limiterParams are the settings of the limiters, as the files spell them.
type limiterParams struct {
	InitialLimit        *int     `json:"initialLimit"`
	MinLimit            *int     `json:"minLimit"`
	MaxLimit            *int     `json:"maxLimit"`
	MaxConcurrency      *int     `json:"maxConcurrency"`
	Smoothing           *float64 `json:"smoothing"`
	QueueSize           *amount  `json:"queueSize"`
	LongWindow          *int     `json:"longWindow"`
	RTTTolerance        *float64 `json:"rttTolerance"`
	BackoffRatio        *float64 `json:"backoffRatio"`
	TimeoutNanos        *int64   `json:"timeoutNanos"`
	ProbeInterval       *int     `json:"probeInterval"`
	ProbeCountdownFixed *int     `json:"probeCountdownFixed"`
	Alpha               *amount  `json:"alpha"`
	Beta                *amount  `json:"beta"`
	Threshold           *amount  `json:"threshold"`
	ProbeMultiplier     *int     `json:"probeMultiplier"`
	ProbeJitter         *float64 `json:"probeJitter"`
}

// amount is a number, or a string that says one or a function.
type amount controller.Amount

func (a *amount) UnmarshalJSON(text []byte) error {
	var s string
	if json.Unmarshal(text, &s) != nil {
		s = string(text)
	}
	return (*controller.Amount)(a).UnmarshalText([]byte(s))
}

// spelled are the settings whose key in a file is not the one of the
// configuration in camel case.
var spelled = map[string]string{
	"initial": "initialLimit", "min": "minLimit", "max": "maxConcurrency or maxLimit",
	"timeout": "timeoutNanos", "min_window": "minWindowNanos", "max_window": "maxWindowNanos",
	"min_rtt_threshold": "minRttThresholdNanos",
}

// respell names the wrong settings as the file does.
func respell(err error) error {
	all := []error{err}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		all = j.Unwrap()
	}
	for i, err := range all {
		e := (*controller.ParamError)(nil)
		if !errors.As(err, &e) {
			continue
		}
		key := spelled[e.Key]
		if key == "" {
			parts := strings.Split(e.Key, "_")
			for i := 1; i < len(parts); i++ {
				parts[i] = strings.ToUpper(parts[i][:1]) + parts[i][1:]
			}
			key = strings.Join(parts, "")
		}
		all[i] = fmt.Errorf("params.%s: %s", key, e.Reason)
	}
	return errors.Join(all...)
}

func (p *limiterParams) settings() (controller.Params, error) {
	c := controller.Params{
		Initial: p.InitialLimit, Min: p.MinLimit, Max: p.MaxConcurrency,
		Smoothing: p.Smoothing, RTTTolerance: p.RTTTolerance, BackoffRatio: p.BackoffRatio,
		QueueSize: (*controller.Amount)(p.QueueSize), Alpha: (*controller.Amount)(p.Alpha),
		Beta: (*controller.Amount)(p.Beta), Threshold: (*controller.Amount)(p.Threshold),
		ProbeInterval: p.ProbeInterval, ProbeMultiplier: p.ProbeMultiplier,
	}
	if p.MaxLimit != nil {
		if p.MaxConcurrency != nil {
			return c, errors.New("params: maxLimit and maxConcurrency are the same setting")
		}
		c.Max = p.MaxLimit
	}
	if p.LongWindow != nil {
		if *p.LongWindow < 1 {
			return c, fmt.Errorf("params.longWindow: %d is less than 1", *p.LongWindow)
		}
		c.LongWindow = &controller.Horizon{Windows: *p.LongWindow}
	}
	if p.TimeoutNanos != nil {
		c.Timeout = new(time.Duration(*p.TimeoutNanos))
	}
	return c, nil
}

// pin takes the randomness out of a limiter that has some.
func (p *limiterParams) pin(s controller.Stepper) error {
	gradient, isGradient := s.(*controller.Gradient)
	vegas, isVegas := s.(*controller.Vegas)
	if n := p.ProbeCountdownFixed; n != nil {
		if !isGradient {
			return errors.New("params.probeCountdownFixed: only for GradientLimit")
		}
		if *n >= 0 {
			gradient.PinProbes(*n)
		}
	}
	if j := p.ProbeJitter; j != nil {
		if !isVegas {
			return errors.New("params.probeJitter: only for VegasLimit")
		}
		if !(*j > 0 && *j <= 1) {
			return fmt.Errorf("params.probeJitter: %v is not above 0 and up to 1", *j)
		}
		vegas.PinProbes(*j)
	}
	return nil
}

var limiterInputs = []string{"startTimeNanos", "rttNanos", "inflight", "didDrop"}

// limiter returns the builder of a limiter that steps once a sample.
func limiter(name string) func(json.RawMessage) (*machine, error) {
	return func(params json.RawMessage) (*machine, error) {
		var p limiterParams
		if err := decode(params, &p); err != nil {
			return nil, err
		}
		c, err := p.settings()
		if err != nil {
			return nil, err
		}
		s, err := controller.NewStepper(name, c)
		if err != nil {
			return nil, respell(err)
		}
		if err := p.pin(s); err != nil {
			return nil, err
		}
		names, values := reading(s)
		return &machine{
			inputs:  limiterInputs,
			outputs: names,
			step: func(in []int64) ([]any, error) {
				dropped, err := truth("didDrop", in[3])
				if err != nil {
					return nil, err
				}
				s.OnSample(controller.Sample{
					RTT: time.Duration(in[1]), InFlight: int(in[2]), Dropped: dropped, Count: 1, Weight: 1,
				})
				return values(), nil
			},
		}, nil
	}
}

// reading returns the output columns of a limiter and how to read them.
func reading(s controller.Stepper) (names []string, values func() []any) {
	names = []string{"limit", "estimatedLimit"}
	switch s := s.(type) {
	case *controller.Gradient2:
		return append(names, "longRttNanos", "lastRttNanos"), func() []any {
			return []any{s.Limit(), s.EstimatedLimit(), s.LongRTT(), int64(s.LastRTT())}
		}
	case *controller.Gradient:
		return append(names, "rttNoLoadNanos"), func() []any {
			return []any{s.Limit(), s.EstimatedLimit(), s.Baseline()}
		}
	case *controller.Vegas:
		return append(names, "rttNoLoadNanos", "probeCount"), func() []any {
			return []any{s.Limit(), s.EstimatedLimit(), int64(s.Baseline()), s.ProbeCount()}
		}
	}
	return names[:1], func() []any { return []any{s.Limit()} }
}

func truth(column string, v int64) (bool, error) {
	if v != 0 && v != 1 {
		return false, fmt.Errorf("%s: %d is neither 0 nor 1", column, v)
	}
	return v == 1, nil
}

// windowParams are the settings of WindowedLimit.
type windowParams struct {
	MinWindowNanos       *time.Duration           `json:"minWindowNanos"`
	MaxWindowNanos       *time.Duration           `json:"maxWindowNanos"`
	WindowSize           *int                     `json:"windowSize"`
	MinRTTThresholdNanos *time.Duration           `json:"minRttThresholdNanos"`
	SampleWindow         *controller.SampleWindow `json:"sampleWindow"`
	Percentile           *float64                 `json:"percentile"`
	PercentileCapacity   *int                     `json:"percentileCapacity"`
	Delegate             string                   `json:"delegate"`
}

// windowed builds windows of raw samples around a limiter with its defaults.
func windowed(params json.RawMessage) (*machine, error) {
	p := windowParams{Delegate: "Gradient2Limit defaults"}
	if err := decode(params, &p); err != nil {
		return nil, err
	}
	if p.MinRTTThresholdNanos == nil {
		p.MinRTTThresholdNanos = new(100 * time.Microsecond)
	}
	c := controller.Params{
		MinWindow: p.MinWindowNanos, MaxWindow: p.MaxWindowNanos, WindowSize: p.WindowSize,
		MinRTTThreshold: p.MinRTTThresholdNanos, SampleWindow: p.SampleWindow,
		Percentile: p.Percentile, PercentileCapacity: p.PercentileCapacity,
		FewSamples: new(controller.Drop),
	}
	name := ""
	switch p.Delegate {
	case "Gradient2Limit defaults":
		name = "gradient2"
		c.LongWindow = &controller.Horizon{Windows: 600}
	case "AIMDLimit defaults":
		name = "aimd"
	default:
		return nil, fmt.Errorf("params.delegate: %.80q is neither Gradient2Limit defaults nor AIMDLimit defaults", p.Delegate)
	}
	a, err := controller.New(name, c)
	if err != nil {
		return nil, respell(err)
	}
	w := a.(*controller.Windowed)
	return &machine{
		inputs:  limiterInputs,
		outputs: []string{"delegateCalled", "delegateRttNanos", "delegateMaxInflight", "delegateDidDrop", "limit"},
		step: func(in []int64) ([]any, error) {
			if _, err := truth("didDrop", in[3]); err != nil {
				return nil, err
			}
			if in[0] > math.MaxInt64-max(in[1], 0) || in[0] < 0 || in[1] < 0 {
				return nil, fmt.Errorf("startTimeNanos and rttNanos: %d and %d are not a time and a duration", in[0], in[1])
			}
			_, before := w.LastSample()
			d := w.Decide(controller.Tick{
				Now: time.Duration(in[0] + in[1]), Samples: 1, Sum: time.Duration(in[1]),
				MaxInFlight: int(in[2]), Dropped: uint64(in[3]),
			})
			s, after := w.LastSample()
			if after == before {
				s = controller.Sample{}
			}
			return []any{after > before, int64(s.RTT), s.InFlight, s.Dropped, d.Limit}, nil
		},
	}, nil
}
