package controller

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// golden is a recorded run of a reference limiter.
type golden struct {
	Algorithm string
	Params    struct {
		InitialLimit, MinLimit, MaxConcurrency, MaxLimit *int
		Smoothing, RTTTolerance, BackoffRatio            *float64
		QueueSize, Alpha, Beta, Threshold                json.RawMessage
		LongWindow, ProbeInterval, ProbeMultiplier       *int
		TimeoutNanos                                     *int64
		ProbeJitter                                      float64
		ProbeCountdownFixed                              int
		MinWindowNanos, MaxWindowNanos                   time.Duration
		MinRttThresholdNanos                             time.Duration
		WindowSize, PercentileCapacity                   int
		SampleWindow                                     SampleWindow
		Percentile                                       float64
	}
	Columns []string
	Steps   [][]json.RawMessage
}

func readGolden(t *testing.T, path string) *golden {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	g := new(golden)
	if err := json.Unmarshal(text, g); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return g
}

// step returns the columns of a step by name. What is no number is NaN.
func (g *golden) step(i int) map[string]float64 {
	m := map[string]float64{}
	for c, name := range g.Columns {
		v := math.NaN()
		if json.Unmarshal(g.Steps[i][c], &v) != nil {
			v = math.NaN()
		}
		m[name] = v
	}
	return m
}

func amount(t *testing.T, raw json.RawMessage) *Amount {
	t.Helper()
	if raw == nil {
		return nil
	}
	a := new(Amount)
	if err := a.UnmarshalText([]byte(strings.Trim(string(raw), `"`))); err != nil {
		t.Fatal(err)
	}
	return a
}

func (g *golden) params(t *testing.T) Params {
	p := Params{
		Initial: g.Params.InitialLimit, Min: g.Params.MinLimit, Max: g.Params.MaxConcurrency,
		Smoothing: g.Params.Smoothing, RTTTolerance: g.Params.RTTTolerance, BackoffRatio: g.Params.BackoffRatio,
		QueueSize: amount(t, g.Params.QueueSize), Alpha: amount(t, g.Params.Alpha),
		Beta: amount(t, g.Params.Beta), Threshold: amount(t, g.Params.Threshold),
		ProbeInterval: g.Params.ProbeInterval, ProbeMultiplier: g.Params.ProbeMultiplier,
	}
	if p.Max == nil {
		p.Max = g.Params.MaxLimit
	}
	if n := g.Params.LongWindow; n != nil {
		p.LongWindow = &Horizon{Windows: *n}
	}
	if n := g.Params.TimeoutNanos; n != nil {
		p.Timeout = new(time.Duration(*n))
	}
	return p
}

// goldenNames are the algorithms by their names in the golden files.
var goldenNames = map[string]string{
	"Gradient2Limit": "gradient2", "GradientLimit": "gradient", "VegasLimit": "vegas", "AIMDLimit": "aimd",
}

func TestSteppersFollowTheReference(t *testing.T) {
	paths, _ := filepath.Glob("testdata/golden/*.json")
	seen := map[string]int{}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		if strings.HasPrefix(name, "windowed_") || name == "gradient2_zero_rtt_first" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			g := readGolden(t, path)
			algorithm := goldenNames[g.Algorithm]
			seen[algorithm]++
			s, err := NewStepper(algorithm, g.params(t))
			if err != nil {
				t.Fatal(err)
			}
			switch s := s.(type) {
			case *Gradient:
				s.PinProbes(g.Params.ProbeCountdownFixed)
			case *Vegas:
				s.PinProbes(g.Params.ProbeJitter)
			}
			for i := range g.Steps {
				in := g.step(i)
				s.OnSample(Sample{
					RTT:      time.Duration(in["rttNanos"]),
					InFlight: int(in["inflight"]),
					Dropped:  in["didDrop"] == 1,
					Weight:   1,
				})
				for column, got := range outputs(s) {
					if !near(got, in[column]) {
						t.Fatalf("step %d: %s is %v, the reference has %v", i, column, got, in[column])
					}
				}
			}
		})
	}
	for _, algorithm := range goldenNames {
		if seen[algorithm] == 0 {
			t.Errorf("no golden file of %s", algorithm)
		}
	}
}

func outputs(s Stepper) map[string]float64 {
	m := map[string]float64{"limit": float64(s.Limit())}
	switch s := s.(type) {
	case *Gradient2:
		m["estimatedLimit"] = s.EstimatedLimit()
		m["longRttNanos"] = s.LongRTT()
		m["lastRttNanos"] = float64(s.LastRTT())
	case *Gradient:
		m["estimatedLimit"] = s.EstimatedLimit()
		m["rttNoLoadNanos"] = s.Baseline()
	case *Vegas:
		m["estimatedLimit"] = s.EstimatedLimit()
		m["rttNoLoadNanos"] = float64(s.Baseline())
		m["probeCount"] = float64(s.ProbeCount())
	}
	return m
}

// near allows doubles 1e-9; integers of this size must then be equal.
func near(got, want float64) bool {
	return math.Abs(got-want) <= 1e-9*math.Abs(want)
}

func TestGradient2SurvivesAZeroRTTFirst(t *testing.T) {
	g := readGolden(t, "testdata/golden/gradient2_zero_rtt_first.json")
	s, err := NewStepper("gradient2", g.params(t))
	if err != nil {
		t.Fatal(err)
	}
	for i := range g.Steps {
		in := g.step(i)
		s.OnSample(Sample{RTT: time.Duration(in["rttNanos"]), InFlight: int(in["inflight"]), Weight: 1})
		if n := s.Limit(); n < 20 || n > 200 {
			t.Fatalf("step %d: limit %d is out of bounds", i, n)
		}
		if long := s.(*Gradient2).LongRTT(); math.IsNaN(long) || long <= 0 {
			t.Fatalf("step %d: long RTT %v", i, long)
		}
	}
	if n := s.Limit(); n <= 20 {
		t.Errorf("limit %d did not grow after the zero", n)
	}
}

func TestWindowsFollowTheReference(t *testing.T) {
	paths, _ := filepath.Glob("testdata/golden/windowed_*.json")
	if len(paths) == 0 {
		t.Fatal("no golden files")
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".json"), func(t *testing.T) {
			g := readGolden(t, path)
			p := Params{
				MinWindow: &g.Params.MinWindowNanos, MaxWindow: &g.Params.MaxWindowNanos,
				WindowSize: &g.Params.WindowSize, MinRTTThreshold: &g.Params.MinRttThresholdNanos,
				SampleWindow: &g.Params.SampleWindow,
				FewSamples:   new(Drop), LongWindow: &Horizon{Windows: 600},
			}
			if g.Params.SampleWindow == Percentile {
				p.Percentile, p.PercentileCapacity = &g.Params.Percentile, &g.Params.PercentileCapacity
			}
			a, err := New("gradient2", p)
			if err != nil {
				t.Fatal(err)
			}
			w := a.(*Windowed)
			for i := range g.Steps {
				in := g.step(i)
				rtt := time.Duration(in["rttNanos"])
				_, before := w.LastSample()
				d := w.Decide(Tick{
					Now:     time.Duration(in["startTimeNanos"]) + rtt,
					Samples: 1, Sum: rtt,
					MaxInFlight: int(in["inflight"]),
					Dropped:     uint64(in["didDrop"]),
				})
				s, after := w.LastSample()
				if after == before {
					s = Sample{}
				}
				for column, got := range map[string]float64{
					"delegateCalled":      float64(after - before),
					"delegateRttNanos":    float64(s.RTT),
					"delegateMaxInflight": float64(s.InFlight),
					"delegateDidDrop":     truth(s.Dropped),
					"limit":               float64(d.Limit),
				} {
					if got != in[column] {
						t.Fatalf("step %d: %s is %v, the reference has %v", i, column, got, in[column])
					}
				}
			}
		})
	}
}
