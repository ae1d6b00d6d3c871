package controller

import (
	"testing"
	"time"
)

func TestResume(t *testing.T) {
	algorithm := func(name string, p Params) Algorithm {
		t.Helper()
		a, err := New(name, p)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	// A second of 20 ms a unit, with ten inside.
	now := time.Duration(0)
	run := func(a Algorithm, ticks int) (d Decision) {
		for range ticks {
			now += 100 * time.Millisecond
			d = a.Decide(Tick{Now: now, Samples: 50, Sum: 50 * 20 * time.Millisecond, MaxInFlight: 10})
		}
		return d
	}
	most, least, warm := 15, 30, time.Minute
	first := algorithm("guarded", Params{})
	run(first, 100)
	learned := first.(*Guarded).Baseline()
	if learned < 19*time.Millisecond || learned > 21*time.Millisecond {
		t.Fatalf("a baseline of %v", learned)
	}
	// Each of the settings holds from the first decision on.
	for name, tt := range map[string]struct {
		p      Params
		lo, hi int
	}{
		"max":     {Params{Max: &most}, 1, 15},
		"min":     {Params{Min: &least}, 30, 65536},
		"warm-up": {Params{WarmUp: &warm}, 1, 65536},
	} {
		next := algorithm("guarded", tt.p)
		if !Resume(next, first) {
			t.Fatalf("%s: not resumed", name)
		}
		if got := guardedIn(next).Baseline(); got != learned {
			t.Errorf("%s: a baseline of %v, learned was %v", name, got, learned)
		}
		for i := range 20 {
			if d := run(next, 1); !guardedIn(next).probe.open && (d.Limit < tt.lo || d.Limit > tt.hi || d.AfterRefusal > tt.hi) {
				t.Errorf("%s: decision %d is %+v, not from %d to %d", name, i, d, tt.lo, tt.hi)
			}
		}
		if got := guardedIn(next).Baseline(); got < 19*time.Millisecond || got > 21*time.Millisecond {
			t.Errorf("%s: later a baseline of %v", name, got)
		}
	}
	cap := 5 * time.Millisecond
	next := algorithm("guarded", Params{MaxBaseline: &cap})
	if Resume(next, first); guardedIn(next).Baseline() != cap {
		t.Errorf("a baseline of %v at a max_baseline of %v", guardedIn(next).Baseline(), cap)
	}
	for _, pair := range [][2]string{{"guarded", "aimd"}, {"aimd", "guarded"}, {"gradient2", "gradient2"}, {"fixed", "fixed"}} {
		if Resume(algorithm(pair[0], Params{}), algorithm(pair[1], Params{})) {
			t.Errorf("%s goes on where %s was", pair[0], pair[1])
		}
	}
}
