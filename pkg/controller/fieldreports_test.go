package controller

import (
	"testing"
	"time"
)

// run feeds an algorithm n windows of 1 s with 50 samples of the same RTT
// each, the limit always in use, and returns the limits.
type run struct {
	algorithm Algorithm
	now       time.Duration
	limit     int
}

func newRun(t *testing.T, name string, p Params) *run {
	t.Helper()
	a, err := New(name, p)
	if err != nil {
		t.Fatal(err)
	}
	return &run{algorithm: a, limit: a.Decide(Tick{}).Limit}
}

func (r *run) windows(n int, rtt time.Duration) []int {
	limits := make([]int, n)
	for i := range limits {
		r.now += time.Second
		r.limit = r.algorithm.Decide(Tick{Now: r.now, Samples: 50, Sum: 50 * rtt, MaxInFlight: r.limit}).Limit
		limits[i] = r.limit
	}
	return limits
}

// first returns the number of the first window whose limit satisfies ok,
// counted from 1, or 0.
func first(limits []int, ok func(int) bool) int {
	for i, l := range limits {
		if ok(l) {
			return i + 1
		}
	}
	return 0
}

// aware gives the two modes that cannot tell by themselves what they need:
// aimd its timeout, blog a warm-up that does not hide the scenario.
func aware(name string) Params {
	switch name {
	case "aimd":
		return Params{Timeout: new(100 * time.Millisecond)}
	case "blog":
		return Params{WarmUp: new(time.Duration(0))}
	}
	return Params{}
}

// A bad phase that ends: RTT 20 ms for 60 windows, 200 ms for 30, then 20 ms
// again. Wanted: the limit reaches its floor in between and is above 90 % of
// its former value again within 60 windows. The limits below are what each
// mode does.
func TestLimitFallsInABadPhaseAndComesBack(t *testing.T) {
	for _, c := range []struct {
		name               string
		former, lowest     int
		floor, backAfter   int
		fallsEnough, backs bool
	}{
		{name: "gradient2", former: 68, lowest: 20, floor: 20, backAfter: 53, fallsEnough: true, backs: true},
		{name: "aimd", former: 80, lowest: 20, floor: 20, backAfter: 53, fallsEnough: true, backs: true},
		// Grows by throughput times baseline, one unit a window here.
		{name: "blog", former: 80, lowest: 5, floor: 5, backAfter: 91, fallsEnough: true},
		// Its queue size, sqrt(limit) a window, stops the fall.
		{name: "gradient", former: 1000, lowest: 65, floor: 1, backAfter: 46, backs: true},
		// Falls by log10(limit) a window, whatever the RTT.
		{name: "vegas", former: 644, lowest: 584, floor: 1, backAfter: 1, backs: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRun(t, c.name, aware(c.name))
			r.windows(60, 20*time.Millisecond)
			former := r.limit
			bad := r.windows(30, 200*time.Millisecond)
			good := r.windows(200, 20*time.Millisecond)

			lowest := former
			for _, l := range bad {
				lowest = min(lowest, l)
			}
			back := first(good, func(l int) bool { return float64(l) > 0.9*float64(former) })
			if former != c.former || lowest != c.lowest || back != c.backAfter {
				t.Errorf("before %d, lowest %d, back after %d windows; recorded were %d, %d, %d",
					former, lowest, back, c.former, c.lowest, c.backAfter)
			}
			if falls := lowest == c.floor; falls != c.fallsEnough {
				t.Errorf("reaches its floor: %t", falls)
			}
			if backs := back > 0 && back <= 60; backs != c.backs {
				t.Errorf("is back within 60 windows: %t", backs)
			}
		})
	}
}

// An overload that stays: RTT 50 ms for 600 windows, then 500 ms for 2000.
// Wanted: from window 30 of it on, never more than half the limit at onset.
func TestLastingOverloadIsNotLearned(t *testing.T) {
	for _, c := range []struct {
		name     string
		onset    int
		overHalf int // first window from the 31st on above half; 0: passes
		fullAt   int // first such window at the limit of the onset
	}{
		{name: "aimd", onset: 200},
		{name: "blog", onset: 1520},
		// The long RTT follows the overload.
		{name: "gradient2", onset: 200, overHalf: 358, fullAt: 482},
		// A probe takes the overload for the baseline.
		{name: "gradient", onset: 1000, overHalf: 558, fullAt: 577},
		{name: "vegas", onset: 1000, overHalf: 31, fullAt: 591},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRun(t, c.name, aware(c.name))
			r.windows(600, 50*time.Millisecond)
			onset := r.limit
			late := r.windows(2000, 500*time.Millisecond)[30:]
			after := func(ok func(int) bool) int {
				if i := first(late, ok); i > 0 {
					return i + 30
				}
				return 0
			}
			overHalf := after(func(l int) bool { return 2*l > onset })
			if onset != c.onset || overHalf != c.overHalf {
				t.Errorf("%d at onset, above half at window %d; recorded were %d, %d", onset, overHalf, c.onset, c.overHalf)
			}
			down := first(late, func(l int) bool { return l < onset })
			full := 0
			if i := first(late[max(down-1, 0):], func(l int) bool { return l >= onset }); i > 0 {
				full = i + max(down-1, 0) + 30
			}
			if full != c.fullAt {
				t.Errorf("at the limit of the onset again in window %d, recorded was %d", full, c.fullAt)
			}
		})
	}
}
