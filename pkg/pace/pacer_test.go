package pace

import (
	"math"
	"testing"
	"time"
)

func newPacer(t testing.TB, s Schedule) *Pacer {
	t.Helper()
	p, err := NewPacer(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPacerWithoutCountAndWithoutUnits(t *testing.T) {
	p := newPacer(t, Schedule{Count: 0, MaxWait: time.Hour})
	if _, ok := p.Take(0, 1); ok {
		t.Error("a count of 0 let one pass")
	}
	if wait, ok := p.Take(0, 0); wait != 0 || !ok {
		t.Error("nothing was refused")
	}
	p = newPacer(t, Schedule{Count: 10})
	p.Take(0, 1)
	if wait, ok := p.Take(0, -1); wait != 0 || !ok {
		t.Error("less than nothing was refused")
	}
	if _, ok := p.Take(100*time.Millisecond, 1); !ok {
		t.Error("less than nothing moved the schedule")
	}
}

// A count that rounds to 0, at which the reference throws.
func TestPacerOfLessThanOneUnit(t *testing.T) {
	p := newPacer(t, Schedule{Count: 0.2, MaxWait: 20 * time.Second, Quantum: SentinelQuantum(0.2, time.Second)})
	for i := range 6 {
		wait, ok := p.Take(0, 1)
		if want := time.Duration(i) * 5 * time.Second; ok != (i < 5) || ok && wait != want {
			t.Errorf("arrival %d: %v, %t", i, wait, ok)
		}
	}
}

func TestPacerRefusesBadSchedules(t *testing.T) {
	for _, s := range []Schedule{
		{Count: -1}, {Count: math.NaN()}, {Count: math.Inf(1)},
		{Count: 1, MaxWait: -1}, {Count: 1, Per: -1}, {Count: 1, Quantum: -1},
	} {
		if _, err := NewPacer(s); err == nil {
			t.Errorf("%+v accepted", s)
		}
	}
}

func TestPacerSurvivesExtremes(t *testing.T) {
	for _, count := range []float64{math.SmallestNonzeroFloat64, 1e-9, 1, 1e300} {
		p := newPacer(t, Schedule{Count: count, MaxWait: math.MaxInt64})
		for _, now := range []time.Duration{-5, 0, 1, math.MaxInt64} {
			for _, n := range []int{1, math.MaxInt} {
				if wait, ok := p.Take(now, n); ok && wait < 0 {
					t.Errorf("count %v, %d at %d: wait %v", count, n, now, wait)
				}
			}
		}
	}
}

func TestRampRefusesBadSettings(t *testing.T) {
	good := Ramp{Rate: 10, Period: 10 * time.Second}
	for _, change := range []func(*Ramp){
		func(r *Ramp) { r.Rate = 0 },
		func(r *Ramp) { r.Rate = math.NaN() },
		func(r *Ramp) { r.Rate = 2e6 },
		func(r *Ramp) { r.Period = 0 },
		func(r *Ramp) { r.ColdFactor = 1 },
		func(r *Ramp) { r.ColdFactor = -3 },
	} {
		r := good
		change(&r)
		if _, err := NewWarmUp(r); err == nil {
			t.Errorf("%+v accepted", r)
		}
		if _, err := NewWarmPacer(r, 0, 1); err == nil {
			t.Errorf("%+v accepted", r)
		}
	}
	if _, err := NewWarmPacer(good, 2*time.Hour, 1); err == nil {
		t.Error("a wait of 2 h was accepted")
	}
}

// From cold a third of the rate passes, after the period all of it, without
// rounding to milliseconds. The load is twice the rate.
func TestWarmPacerRampsUp(t *testing.T) {
	for _, rate := range []float64{5, 300, 50_000} {
		p, err := NewWarmPacer(Ramp{Rate: rate, Period: 10 * time.Second}, 20*time.Millisecond, 1)
		if err != nil {
			t.Fatal(err)
		}
		passed := make([]float64, 30)
		gap := time.Duration(1e9 / (2 * rate))
		for now := time.Duration(0); now < 30*time.Second; now += gap {
			if _, ok := p.Take(now, 1); ok {
				passed[now/time.Second]++
			}
		}
		// The gap of arrivals limits how well a slot is met at low rates.
		if first := passed[0] / rate; first < 0.19 || first > 0.45 {
			t.Errorf("%v/s: %.3f of the rate in the first second", rate, first)
		}
		if last := passed[29] / rate; last < 0.95 || last > 1.05 {
			t.Errorf("%v/s: %.3f of the rate in the end", rate, last)
		}
	}
}

// With so little traffic or so short a period that there are no tokens, the
// rate is the warm one and not NaN.
func TestWarmUpOfAlmostNothing(t *testing.T) {
	w, err := NewWarmUp(Ramp{Rate: 0.1, Period: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if r := w.tokens.rateNow(); math.Abs(r-0.1) > 1e-12 {
		t.Errorf("rate %v", r)
	}
}

func TestTakeDoesNotAllocate(t *testing.T) {
	p := newPacer(t, Schedule{Count: 100, MaxWait: time.Second})
	warm, err := NewWarmPacer(Ramp{Rate: 100, Period: 10 * time.Second}, time.Second, 1)
	if err != nil {
		t.Fatal(err)
	}
	var now time.Duration
	if n := testing.AllocsPerRun(1000, func() {
		now += 7 * time.Millisecond
		p.Take(now, 1)
		warm.Take(now, 1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPacerTake(b *testing.B) {
	p := newPacer(b, Schedule{Count: 100, MaxWait: time.Second})
	b.ReportAllocs()
	for now := time.Duration(0); b.Loop(); now += 7 * time.Millisecond {
		p.Take(now, 1)
	}
}

func BenchmarkWarmPacerTake(b *testing.B) {
	p, err := NewWarmPacer(Ramp{Rate: 100, Period: 10 * time.Second}, time.Second, 1)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for now := time.Duration(0); b.Loop(); now += 7 * time.Millisecond {
		p.Take(now, 1)
	}
}
