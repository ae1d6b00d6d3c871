package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"headgate/pkg/pace"
)

// arrival is a moment and the units that ask to pass at it.
type arrival struct {
	now   time.Duration
	units int
}

// arrivals returns the reader of arrivals, which come in the order of time.
func arrivals() func(in []int64) (arrival, error) {
	var last int64
	return func(in []int64) (arrival, error) {
		if in[0] < last {
			return arrival{}, fmt.Errorf("arriveNanos: %d is before the arrival at %d", in[0], last)
		}
		if in[1] > math.MaxInt32 || in[1] < math.MinInt32 {
			return arrival{}, fmt.Errorf("acquireCount: %d is not an integer of 32 bits", in[1])
		}
		last = in[0]
		return arrival{time.Duration(in[0]), int(in[1])}, nil
	}
}

var arrivalInputs = []string{"arriveNanos", "acquireCount"}

// throttling builds the pace limiter.
func throttling(params json.RawMessage) (*machine, error) {
	p := struct {
		Count                   float64 `json:"count"`
		MaxQueueingTimeMs       int64   `json:"maxQueueingTimeMs"`
		StatDurationMs          int64   `json:"statDurationMs"`
		CurrentUsesNanos        any     `json:"currentUsesNanos"`        // follows from the others
		CurrentConstructorError any     `json:"currentConstructorError"` // does not happen here
	}{StatDurationMs: 1000}
	if err := decode(params, &p); err != nil {
		return nil, err
	}
	maxWait, err := millis("maxQueueingTimeMs", p.MaxQueueingTimeMs)
	if err != nil {
		return nil, err
	}
	per, err := millis("statDurationMs", p.StatDurationMs)
	if err != nil {
		return nil, err
	}
	if per == 0 {
		return nil, errors.New("params.statDurationMs: not to be 0")
	}
	pacer, err := pace.NewPacer(pace.Schedule{
		Count: p.Count, Per: per, MaxWait: maxWait, Quantum: pace.SentinelQuantum(p.Count, per),
	})
	if err != nil {
		return nil, fmt.Errorf("params.%w", err)
	}
	read := arrivals()
	return &machine{
		inputs:  arrivalInputs,
		outputs: []string{"currentPass", "currentWaitNanos"},
		ignored: []string{"legacyPass", "legacyWaitNanos"},
		step: func(in []int64) ([]any, error) {
			a, err := read(in)
			if err != nil {
				return nil, err
			}
			wait, ok := pacer.Take(a.now, a.units)
			return []any{ok, int64(wait)}, nil
		},
	}, nil
}

// rampParams are the settings of a warm-up.
type rampParams struct {
	Count           float64 `json:"count"`
	WarmUpPeriodSec int64   `json:"warmUpPeriodSec"`
	ColdFactor      int     `json:"coldFactor"`
	TimeoutMs       *int64  `json:"timeoutMs"`
	WarningToken    any     `json:"warningToken"` // these follow from the others
	MaxToken        any     `json:"maxToken"`
	Slope           any     `json:"slope"`
}

func ramp(params json.RawMessage) (pace.Ramp, *int64, error) {
	var p rampParams
	if err := decode(params, &p); err != nil {
		return pace.Ramp{}, nil, err
	}
	if p.WarmUpPeriodSec < 1 || p.WarmUpPeriodSec > 86400 {
		return pace.Ramp{}, nil, fmt.Errorf("params.warmUpPeriodSec: %d is not from 1 to 86400", p.WarmUpPeriodSec)
	}
	period := time.Duration(p.WarmUpPeriodSec) * time.Second
	return pace.Ramp{Rate: p.Count, Period: period, ColdFactor: p.ColdFactor}, p.TimeoutMs, nil
}

// respellRamp names the wrong setting as the file does.
func respellRamp(err error) error {
	key, reason, _ := strings.Cut(err.Error(), ": ")
	spelled := map[string]string{"rate": "count", "period": "warmUpPeriodSec", "cold_factor": "coldFactor", "max_wait": "timeoutMs"}
	return fmt.Errorf("params.%s: %s", spelled[key], reason)
}

var rampOutputs = []string{"pass", "waitNanos", "storedTokens"}

// warmUp builds the warm-up that refuses.
func warmUp(params json.RawMessage) (*machine, error) {
	r, timeout, err := ramp(params)
	if err != nil {
		return nil, err
	}
	if timeout != nil {
		return nil, errors.New("params.timeoutMs: only for WarmUpRateLimiterController")
	}
	w, err := pace.NewWarmUp(r)
	if err != nil {
		return nil, respellRamp(err)
	}
	read := arrivals()
	return &machine{
		inputs:  arrivalInputs,
		outputs: rampOutputs,
		step: func(in []int64) ([]any, error) {
			a, err := read(in)
			if err != nil {
				return nil, err
			}
			return []any{w.Take(a.now, a.units), 0, w.Stored()}, nil
		},
	}, nil
}

// warmUpPace builds the warm-up that paces.
func warmUpPace(params json.RawMessage) (*machine, error) {
	r, timeout, err := ramp(params)
	if err != nil {
		return nil, err
	}
	if timeout == nil {
		timeout = new(int64)
	}
	maxWait, err := millis("timeoutMs", *timeout)
	if err != nil {
		return nil, err
	}
	w, err := pace.NewWarmPacer(r, maxWait, time.Millisecond)
	if err != nil {
		return nil, respellRamp(err)
	}
	read := arrivals()
	return &machine{
		inputs:  arrivalInputs,
		outputs: rampOutputs,
		step: func(in []int64) ([]any, error) {
			a, err := read(in)
			if err != nil {
				return nil, err
			}
			wait, ok := w.Take(a.now, a.units)
			return []any{ok, int64(wait), w.Stored()}, nil
		},
	}, nil
}

// gateParams are the settings of the plain gates. What else a file may say
// has one value only.
type gateParams struct {
	Count       float64 `json:"count"`
	Grade       string  `json:"grade"`
	SampleCount *int    `json:"sampleCount"`
	IntervalMs  *int    `json:"intervalMs"`
}

func gate(params json.RawMessage, grade string) (float64, error) {
	p := gateParams{Grade: grade}
	if err := decode(params, &p); err != nil {
		return 0, err
	}
	switch {
	case p.Grade != grade:
		return 0, fmt.Errorf("params.grade: %.80q is not %s", p.Grade, grade)
	case p.SampleCount != nil && *p.SampleCount != 2:
		return 0, fmt.Errorf("params.sampleCount: only 2, not %d", *p.SampleCount)
	case p.IntervalMs != nil && *p.IntervalMs != 1000:
		return 0, fmt.Errorf("params.intervalMs: only 1000, not %d", *p.IntervalMs)
	}
	return p.Count, nil
}

// rejectByRate builds the gate that counts passes in a second.
func rejectByRate(params json.RawMessage) (*machine, error) {
	count, err := gate(params, "qps")
	if err != nil {
		return nil, err
	}
	g := pace.NewRateGate(count)
	read := arrivals()
	return &machine{
		inputs:  arrivalInputs,
		outputs: []string{"pass", "waitNanos"},
		step: func(in []int64) ([]any, error) {
			a, err := read(in)
			if err != nil {
				return nil, err
			}
			return []any{g.Take(a.now, a.units), 0}, nil
		},
	}, nil
}

// rejectByCount builds the gate that counts what is inside.
func rejectByCount(params json.RawMessage) (*machine, error) {
	count, err := gate(params, "thread")
	if err != nil {
		return nil, err
	}
	g := pace.NewCountGate(count)
	return &machine{
		inputs:  []string{"enter", "acquireCount"},
		outputs: []string{"pass", "threadsAfter"},
		step: func(in []int64) ([]any, error) {
			enter, err := truth("enter", in[0])
			if err != nil {
				return nil, err
			}
			if in[1] > math.MaxInt32 || in[1] < math.MinInt32 {
				return nil, fmt.Errorf("acquireCount: %d is not an integer of 32 bits", in[1])
			}
			if !enter {
				g.Leave()
				return []any{true, g.Inside()}, nil
			}
			return []any{g.Enter(int(in[1])), g.Inside()}, nil
		},
	}, nil
}
