package controller

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"headgate/pkg/rtt"
)

// windowedNames are the algorithms that work on windows.
func windowedNames() []string {
	return slices.DeleteFunc(Names(), func(n string) bool { return n == "guarded" || n == "fixed" })
}

func TestNewNamesTheSettingThatIsWrong(t *testing.T) {
	for _, c := range []struct {
		algorithm string
		p         Params
		want      string // key: part of the reason
	}{
		{"", Params{}, "algorithm: gradient2"},
		{"Gradient2", Params{}, "algorithm: gradient2"},
		{"gradient2", Params{Min: new(0)}, "min: 0 is not from 1 to"},
		{"gradient2", Params{Max: new(math.MaxInt)}, "max: to 1073741824"},
		{"gradient2", Params{Min: new(50), Max: new(40)}, "max: 40 is less than min (50)"},
		{"gradient2", Params{Initial: new(300)}, "initial: from 20 to 200"},
		{"gradient2", Params{Initial: new(-1)}, "initial: from 20 to 200"},
		{"gradient2", Params{Smoothing: new(0.0)}, "smoothing: above 0 and up to 1"},
		{"gradient2", Params{Smoothing: new(math.NaN())}, "smoothing: above 0 and up to 1"},
		{"gradient2", Params{RTTTolerance: new(0.99)}, "rtt_tolerance: from 1 to 1000"},
		{"gradient2", Params{RTTTolerance: new(math.Inf(1))}, "rtt_tolerance: from 1 to 1000"},
		{"gradient2", Params{Timeout: new(time.Second)}, "timeout: not a setting of gradient2"},
		{"gradient2", Params{MinWindow: new(time.Duration(0))}, "min_window: from 1ms to 1h"},
		{"gradient2", Params{MinWindow: new(2 * time.Second), MaxWindow: new(time.Second)}, "max_window: less than min_window"},
		{"gradient2", Params{WindowSize: new(0)}, "window_size: from 1 to 1000000"},
		{"gradient2", Params{FewSamples: new(FewSamples("keep"))}, "few_samples: neither weigh nor drop"},
		{"gradient2", Params{SampleWindow: new(SampleWindow("median"))}, "sample_window: neither average nor percentile"},
		{"gradient2", Params{Percentile: new(0.5)}, "percentile: only with sample_window"},
		{"gradient2", Params{SampleWindow: new(Percentile), Percentile: new(1.01)}, "percentile: up to 1"},
		{"gradient2", Params{WarmUp: new(-time.Second)}, "warm_up: from 0s to 1h"},
		{"gradient", Params{ProbeInterval: new(0)}, "probe_interval: -1 (never)"},
		{"gradient", Params{ProbeInterval: new(-2)}, "probe_interval: from -1"},
		{"gradient", Params{BackoffRatio: new(0.49)}, "backoff_ratio: from 0.5 to 1"},
		{"aimd", Params{BackoffRatio: new(1.0)}, "backoff_ratio: from 0.5 to 0.99"},
		{"aimd", Params{Timeout: new(time.Duration(0))}, "timeout: from 1ns to 1h"},
		{"vegas", Params{ProbeMultiplier: new(0)}, "probe_multiplier: from 1 to"},
		{"vegas", Params{Growth: new(LittlesLaw)}, "growth: not a setting of vegas"},
		{"blog", Params{Growth: new(Growth("rps"))}, "growth: none of littles_law"},
		{"fixed", Params{Initial: new(-1)}, "initial: from 0 to 65536"},
		{"fixed", Params{Smoothing: new(0.5)}, "smoothing: not a setting of fixed"},
		{"guarded", Params{Dither: new(2.0)}, "dither: between 0 and 0.5"},
		{"guarded", Params{Alpha: new(Units(3))}, "alpha: not a setting of guarded"},
	} {
		_, err := New(c.algorithm, c.p)
		if err == nil {
			t.Errorf("%s: accepted, want %q", c.algorithm, c.want)
			continue
		}
		key, reason, _ := strings.Cut(c.want, ": ")
		if e, ok := errors.AsType[*ParamError](err); !ok || e.Key != key || !strings.Contains(e.Reason, reason) {
			t.Errorf("%s: %q, want %q", c.algorithm, err, c.want)
		}
	}
}

func TestNewReportsEverySettingThatIsWrong(t *testing.T) {
	_, err := New("gradient2", Params{Min: new(-1), Smoothing: new(2.0), Timeout: new(time.Second)})
	if n := strings.Count(err.Error(), "\n") + 1; n != 3 {
		t.Errorf("%d errors: %v", n, err)
	}
}

func TestDefaultsGiveWayToBounds(t *testing.T) {
	for _, c := range []struct {
		name    string
		p       Params
		initial int
	}{
		{"gradient2", Params{Max: new(10)}, 10},
		{"gradient2", Params{Min: new(1000)}, 1000},
		{"aimd", Params{Min: new(1), Max: new(2)}, 2},
		{"guarded", Params{Min: new(100)}, 100},
	} {
		a, err := New(c.name, c.p)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if d := a.Decide(Tick{}); d.Limit != c.initial {
			t.Errorf("%s: begins at %d, want %d", c.name, d.Limit, c.initial)
		}
	}
}

func TestFixedStaysAndCanBeSet(t *testing.T) {
	a, err := New("fixed", Params{Initial: new(7), Min: new(2), Max: new(9)})
	if err != nil {
		t.Fatal(err)
	}
	f := a.(*Fixed)
	f.Decide(Tick{Now: 1, Samples: 1, Sum: time.Hour, Refused: 10})
	for _, bad := range []int{1, 10, -1} {
		if f.Set(bad) == nil {
			t.Errorf("Set(%d) accepted", bad)
		}
	}
	if d := f.Decide(Tick{}); d != (Decision{Limit: 7, AfterRefusal: 7}) {
		t.Errorf("%+v", d)
	}
	if err := f.Set(9); err != nil || f.Decide(Tick{}).Limit != 9 {
		t.Errorf("Set(9): %v, then %d", err, f.Decide(Tick{}).Limit)
	}
}

func TestAmountText(t *testing.T) {
	for text, at := range map[string]map[float64]float64{
		"4":                         {0: 4, 1e9: 4},
		"0":                         {50: 0},
		"sqrt(limit), at least 4":   {1: 4, 24.9: 4, 25: 5, 1000: 31},
		"3*log10(limit)":            {0: 3, 9: 3, 99: 3, 100: 6, 999.9: 6, 1000: 9},
		"2*sqrt(limit), at least 9": {1: 9, 100: 20},
	} {
		var a Amount
		if err := a.UnmarshalText([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if a.String() != text {
			t.Errorf("%s came back as %s", text, a)
		}
		for limit, want := range at {
			if got := a.at(limit); got != want {
				t.Errorf("%s at %v is %v, want %v", text, limit, got, want)
			}
		}
	}
	for _, text := range []string{"", "-1", "1.5", "1e9", "sqrt(limit", "ln(limit)", "-3*sqrt(limit)", "9999999999", "sqrt(limit), at least", "99999999999*sqrt(limit)"} {
		if err := new(Amount).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q accepted", text)
		}
	}
}

func TestHorizonText(t *testing.T) {
	for text, want := range map[string]Horizon{"600s": {Time: 600 * time.Second}, "600": {Windows: 600}, "1ms": {Time: time.Millisecond}} {
		var h Horizon
		if err := h.UnmarshalText([]byte(text)); err != nil || h != want {
			t.Errorf("%s: %+v, %v", text, h, err)
		}
	}
	for _, text := range []string{"", "0", "-5", "0s", "-1s", "1us", "20000h", "10000000000", "x"} {
		if err := new(Horizon).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q accepted", text)
		}
	}
}

// Whatever the ticks hold, a decision is within the bounds.
func TestLimitStaysWithinBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Params{
			Min: new(rapid.IntRange(1, 100).Draw(t, "min")),
		}
		p.Max = new(rapid.SampledFrom([]int{*p.Min, *p.Min + 7, 1 << 30}).Draw(t, "max"))
		name := rapid.SampledFrom(windowedNames()).Draw(t, "algorithm")
		if rapid.Bool().Draw(t, "percentile") {
			p.SampleWindow = new(Percentile)
		}
		p.FewSamples = new(rapid.SampledFrom([]FewSamples{Weigh, Drop}).Draw(t, "few"))
		p.WarmUp = new(time.Duration(0))
		a, err := New(name, p)
		if err != nil {
			t.Fatal(err)
		}
		extreme := rapid.SampledFrom([]int64{math.MinInt64, -1, 0, 1, 1e3, 1e7, 1e9, 1e18, math.MaxInt64})
		now := time.Duration(0)
		for range rapid.IntRange(1, 60).Draw(t, "ticks") {
			now += time.Duration(rapid.Int64Range(-1e9, 5e9).Draw(t, "step"))
			tick := Tick{
				Now:         now,
				Samples:     uint64(extreme.Draw(t, "samples")),
				Sum:         time.Duration(extreme.Draw(t, "sum")),
				MaxInFlight: int(extreme.Draw(t, "in flight")),
				Dropped:     uint64(rapid.IntRange(0, 1).Draw(t, "dropped")),
			}
			if rapid.Bool().Draw(t, "histogram") {
				tick.Histogram = new(rtt.Histogram)
				tick.Histogram.Bucket[rapid.IntRange(0, rtt.Buckets-1).Draw(t, "bucket")] = uint32(extreme.Draw(t, "in bucket"))
			}
			if d := a.Decide(tick); d.Limit < *p.Min || d.Limit > *p.Max || d.AfterRefusal != d.Limit {
				t.Fatalf("%s: %+v after %+v", name, d, tick)
			}
			for _, term := range a.Terms() {
				if math.IsNaN(term.Value) {
					t.Fatalf("%s: %s is NaN after %+v", name, term.Name, tick)
				}
			}
		}
	})
}

// steady returns a tick like that of a busy target, with its histogram.
func steady(n int) Tick {
	h := new(rtt.Histogram)
	for i := range n {
		h.Record(time.Duration(15+i%10) * time.Millisecond)
	}
	return Tick{Samples: h.Count, Sum: h.Sum, Histogram: h, MaxInFlight: 1 << 20}
}

func TestStepsDoNotAllocate(t *testing.T) {
	for _, name := range append(windowedNames(), "fixed") {
		for _, statistic := range []SampleWindow{Average, Percentile} {
			p := Params{}
			if name != "fixed" {
				p.SampleWindow, p.WarmUp = &statistic, new(time.Duration(0))
			}
			a, err := New(name, p)
			if err != nil {
				t.Fatal(err)
			}
			with, without := steady(50), steady(50)
			without.Histogram = nil
			if n := testing.AllocsPerRun(200, func() {
				with.Now += 2 * time.Second
				without.Now = with.Now + time.Second
				a.Decide(with)
				a.Decide(without)
			}); n != 0 {
				t.Errorf("%s with %s: %v allocations a step", name, statistic, n)
			}
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, name := range append(windowedNames(), "fixed") {
		for _, statistic := range []SampleWindow{Average, Percentile} {
			p := Params{}
			if name != "fixed" {
				p.SampleWindow = &statistic
			} else if statistic == Percentile {
				continue
			}
			a, err := New(name, p)
			if err != nil {
				b.Fatal(err)
			}
			b.Run(name+"/"+string(statistic), func(b *testing.B) {
				tick := steady(50)
				b.ReportAllocs()
				for b.Loop() {
					tick.Now += time.Second
					a.Decide(tick)
				}
			})
		}
	}
}

func TestFloor(t *testing.T) {
	for _, c := range []struct {
		algorithm string
		p         Params
		want      int
	}{
		{"guarded", Params{}, 1},
		{"guarded", Params{Min: new(7)}, 7},
		{"guarded", Params{Max: new(0)}, 1}, // not valid, as New says
		{"blog", Params{}, 5},
		{"gradient2", Params{}, 20},
		{"aimd", Params{Min: new(3)}, 3},
		{"fixed", Params{Min: new(3)}, 0},
		{"none", Params{}, 0},
	} {
		if got := Floor(c.algorithm, c.p); got != c.want {
			t.Errorf("%s %+v: %d, want %d", c.algorithm, c.p, got, c.want)
		}
	}
}
