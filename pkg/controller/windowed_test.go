package controller

import (
	"math"
	"testing"
	"time"

	"headgate/pkg/rtt"
)

// recorder is a Stepper that keeps what it is given.
type recorder struct{ samples []Sample }

func (r *recorder) OnSample(s Sample) { r.samples = append(r.samples, s) }
func (r *recorder) Limit() int        { return 20 }
func (r *recorder) Terms() []Term     { return nil }

func newRecorder(t *testing.T, p Params) (*recorder, *Windowed) {
	t.Helper()
	r, s := new(recorder), newSettings()
	w := s.windowed(p, r, frame{min: 1, max: 100, shortest: 100 * ms, longest: time.Second})
	if err := s.err("recorder", p); err != nil {
		t.Fatal(err)
	}
	return r, w
}

const ms = time.Millisecond

func TestFewSamplesExtendTheWindowAndWeighLess(t *testing.T) {
	r, w := newRecorder(t, Params{})
	w.Decide(Tick{})
	// 3 units a second: the limit still has to adapt.
	for i := 1; i <= 20; i++ {
		tick := Tick{Now: time.Duration(i) * 100 * ms, MaxInFlight: i}
		if i%3 == 0 && i < 10 {
			tick.Samples, tick.Sum = 1, 20*ms
		}
		w.Decide(tick)
	}
	if len(r.samples) != 1 {
		t.Fatalf("%d samples, want 1: the second window is empty", len(r.samples))
	}
	want := Sample{RTT: 20 * ms, InFlight: 10, Count: 3, Span: time.Second, Weight: 0.3}
	if r.samples[0] != want {
		t.Errorf("%+v, want %+v", r.samples[0], want)
	}
}

func TestFullWindowIsNotExtended(t *testing.T) {
	r, w := newRecorder(t, Params{})
	w.Decide(Tick{})
	for i := 1; i <= 5; i++ {
		w.Decide(Tick{Now: time.Duration(i) * 100 * ms, Samples: 10, Sum: 200 * ms})
	}
	if len(r.samples) != 5 {
		t.Fatalf("%d samples of 5 ticks", len(r.samples))
	}
	for _, s := range r.samples {
		if s.Weight != 1 || s.Span != 100*ms || s.RTT != 20*ms {
			t.Errorf("%+v", s)
		}
	}
}

// Ticks are never exactly on time: a window ends at the tick that is nearest.
func TestLateAndEarlyTicksKeepTheLengthOfWindows(t *testing.T) {
	r, w := newRecorder(t, Params{MinWindow: new(time.Second)})
	w.Decide(Tick{})
	for i := 1; i <= 100; i++ {
		w.Decide(Tick{Now: time.Duration(i)*100*ms + time.Duration(i*7%5-2)*ms, Samples: 10, Sum: 200 * ms})
	}
	if len(r.samples) != 10 {
		t.Fatalf("%d windows of 1 s in 10 s", len(r.samples))
	}
}

func TestWindowIsTwiceTheShortestRTT(t *testing.T) {
	r, w := newRecorder(t, Params{MaxWindow: new(600 * ms)})
	w.Decide(Tick{})
	for i := 1; i <= 23; i++ {
		w.Decide(Tick{Now: time.Duration(i) * 100 * ms, Samples: 10, Sum: 10 * time.Duration(200) * ms})
	}
	if len(r.samples) < 3 || r.samples[0].Span != 100*ms || r.samples[1].Span != 400*ms || r.samples[2].Span != 400*ms {
		t.Errorf("%+v", r.samples)
	}
}

func TestDropThrowsAwaySmallWindows(t *testing.T) {
	r, w := newRecorder(t, Params{FewSamples: new(Drop)})
	for i := range 50 {
		w.Decide(Tick{Now: time.Duration(i) * 60 * ms, Samples: 4, Sum: 80 * ms})
	}
	if len(r.samples) != 0 {
		t.Errorf("%d windows of 8 samples were passed on", len(r.samples))
	}
}

func TestWarmUpIsMarked(t *testing.T) {
	r, w := newRecorder(t, Params{WarmUp: new(500 * ms)})
	for i := 0; i <= 10; i++ {
		w.Decide(Tick{Now: time.Hour + time.Duration(i)*100*ms, Samples: 10, Sum: 200 * ms})
	}
	for i, s := range r.samples {
		if s.Warming != (i < 4) {
			t.Errorf("window %d: %t", i, s.Warming)
		}
	}
}

func TestWarmUpHoldsTheLimit(t *testing.T) {
	for _, name := range append(windowedNames(), "guarded") {
		a, err := New(name, Params{WarmUp: new(10 * time.Second), Initial: new(30)})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			d := a.Decide(Tick{Now: time.Duration(i) * time.Second, Samples: 50, Sum: time.Second, MaxInFlight: 100})
			if i < 10 && d.Limit != 30 {
				t.Errorf("%s: %d after %d s", name, d.Limit, i)
			}
			if i == 19 && d.Limit == 30 {
				t.Errorf("%s: still %d after %d s", name, d.Limit, i)
			}
		}
	}
}

func TestPercentileOfHistograms(t *testing.T) {
	r, w := newRecorder(t, Params{SampleWindow: new(Percentile), Percentile: new(0.9), MinWindow: new(time.Second)})
	w.Decide(Tick{})
	for i := 1; i <= 10; i++ { // 1 to 100 ms, ten a tick
		h := new(rtt.Histogram)
		for k := range 10 {
			h.Record(time.Duration(10*k+i) * ms)
		}
		w.Decide(Tick{Now: time.Duration(i) * 100 * ms, Samples: h.Count, Sum: h.Sum, Histogram: h})
	}
	if len(r.samples) != 1 || math.Abs(r.samples[0].RTT.Seconds()-0.090) > 0.032*0.090 {
		t.Errorf("%+v, want 90 ms to 3.2 %%", r.samples)
	}
}

func TestThresholdIgnoresShortSamples(t *testing.T) {
	for _, histogram := range []bool{true, false} {
		r, w := newRecorder(t, Params{MinRTTThreshold: new(ms)})
		w.Decide(Tick{})
		fast, slow := new(rtt.Histogram), new(rtt.Histogram)
		for range 100 {
			fast.Record(200 * time.Microsecond)
		}
		for range 20 {
			slow.Record(20 * ms)
		}
		if histogram {
			for range 100 {
				slow.Record(200 * time.Microsecond)
			}
		} else {
			fast = &rtt.Histogram{Count: fast.Count, Sum: fast.Sum}
		}
		for i, h := range []*rtt.Histogram{fast, slow} {
			tick := Tick{Now: time.Duration(i+1) * 100 * ms, Samples: h.Count, Sum: h.Sum, Histogram: h}
			if !histogram {
				tick.Histogram = nil
			}
			w.Decide(tick)
		}
		if len(r.samples) != 1 || r.samples[0].Count != 20 || math.Abs(r.samples[0].RTT.Seconds()-0.020) > 0.016*0.020 {
			t.Errorf("histogram %t: %+v", histogram, r.samples)
		}
	}
}

// The long window is a length of time, so windows of 100 ms and of 1 s learn
// an overload at the same pace.
func TestLongWindowIsInTime(t *testing.T) {
	long := func(window time.Duration) float64 {
		a, err := New("gradient2", Params{MinWindow: &window, MaxWindow: &window, Min: new(1)})
		if err != nil {
			t.Fatal(err)
		}
		for i := range int(400 * time.Second / window) {
			rtt := 20 * ms
			if i > int(100*time.Second/window) {
				rtt = 200 * ms
			}
			a.Decide(Tick{Now: time.Duration(i) * window, Samples: 20, Sum: 20 * rtt, MaxInFlight: 1000})
		}
		return a.(*Windowed).stepper.(*Gradient2).LongRTT()
	}
	if short, long := long(100*ms), long(time.Second); math.Abs(short-long) > 0.02*long {
		t.Errorf("long RTT %.1f ms with short windows, %.1f ms with long ones", short/1e6, long/1e6)
	}
}

// Blog settles where limit - capacity = T. A closed loop with c = 16 and
// S = 20 ms, saturated.
func TestBlogGrowthDecidesWhereItSettles(t *testing.T) {
	settle := func(g Growth) int {
		a, err := New("blog", Params{Growth: &g, WarmUp: new(time.Duration(0)), Initial: new(16)})
		if err != nil {
			t.Fatal(err)
		}
		limit := 16
		for i := range 600 {
			rtt := 20 * ms * time.Duration(max(limit, 16)) / 16
			limit = a.Decide(Tick{Now: time.Duration(i) * 100 * ms, Samples: 80, Sum: 80 * rtt, MaxInFlight: limit}).Limit
		}
		return limit
	}
	for g, want := range map[Growth]int{LittlesLaw: 32, PerWindow: 96, PerSecond: 816} {
		if got := settle(g); math.Abs(float64(got-want)) > 2 {
			t.Errorf("%s settles at %d, want %d", g, got, want)
		}
	}
}
