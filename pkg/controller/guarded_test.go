package controller

import (
	"strings"
	"testing"
	"time"
)

func newGuarded(t testing.TB, change func(*GuardedParams)) *Guarded {
	t.Helper()
	p := DefaultGuardedParams()
	if change != nil {
		change(&p)
	}
	g, err := NewGuarded(p)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGuardedParamsSayEveryError(t *testing.T) {
	p := DefaultGuardedParams()
	p.Min, p.Window, p.Dither = 0, 0, 2
	_, err := NewGuarded(p)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, key := range []string{"min:", "window:", "dither:"} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("%q does not name %s", err, key)
		}
	}
}

func TestGuardedDecidesWithoutAllocating(t *testing.T) {
	g := newGuarded(t, nil)
	tick := Tick{Samples: 50, Sum: time.Second, MaxInFlight: 20, Refused: 1}
	n := testing.AllocsPerRun(1000, func() {
		tick.Now += 100 * time.Millisecond
		tick.Cohort = Cohort{Epoch: g.decision.CohortEpoch, Admitted: 20, Done: 19, Sum: 400 * time.Millisecond}
		g.Decide(tick)
	})
	if n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}

func BenchmarkGuardedDecide(b *testing.B) {
	g := newGuarded(b, nil)
	tick := Tick{Samples: 50, Sum: time.Second, MaxInFlight: 20, Refused: 1}
	b.ReportAllocs()
	for b.Loop() {
		tick.Now += 100 * time.Millisecond
		tick.Cohort = Cohort{Epoch: g.decision.CohortEpoch, Admitted: 20, Done: 19, Sum: 400 * time.Millisecond}
		g.Decide(tick)
	}
}
