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

// An agent that only observes sees the overload that it does not prevent. It
// must not take the service time of that for the baseline: once it enforces,
// the limit has to be right at once.
func TestGuardedLearnsNoOverloadWhileObserving(t *testing.T) {
	g, err := NewGuarded(DefaultGuardedParams())
	if err != nil {
		t.Fatal(err)
	}
	const service = 20 * time.Millisecond
	now := time.Duration(0)
	tick := func(n uint64, rtt time.Duration, inFlight int, refused uint64) Decision {
		now += 100 * time.Millisecond
		return g.Decide(Tick{Now: now, Samples: n, Sum: time.Duration(n) * rtt, MaxInFlight: inFlight, Refused: refused, Observing: true})
	}
	for range 50 {
		tick(40, service, 8, 0)
	}
	var d Decision
	for range 600 {
		d = tick(80, 1500*time.Millisecond, 6000, 400)
	}
	if d.CohortSize > 0 {
		t.Error("a probe goes on although no limit is in force")
	}
	if d.Limit > 40 {
		t.Errorf("after a minute of watching an overload the limit is %d; the server carries 16", d.Limit)
	}
}

// Requests that hang (a long poll, a stream) hold slots and finish nothing. A
// probe that lowers the limit below their number admits nobody: it has to end
// before the port is closed for long.
func TestGuardedGivesUpAProbeThatHungUnitsBlock(t *testing.T) {
	g, err := NewGuarded(DefaultGuardedParams())
	if err != nil {
		t.Fatal(err)
	}
	const service = 20 * time.Millisecond
	const hung, workers = 12, 16
	now := time.Duration(0)
	limit, blocked, longest, probes := 20, 0, 0, 0
	for range 1200 { // two minutes
		now += 100 * time.Millisecond
		in := Tick{Now: now, Refused: 100, MaxInFlight: max(limit, hung)}
		in.Cohort.Epoch = g.decision.CohortEpoch
		if busy := min(limit-hung, workers); busy > 0 {
			blocked = 0
			in.Samples = uint64(busy * 5)
			in.Sum = time.Duration(in.Samples) * service * time.Duration(limit-hung) / time.Duration(busy)
			size := g.decision.CohortSize
			in.Cohort = Cohort{Epoch: in.Cohort.Epoch, Admitted: size, Done: size, Sum: time.Duration(size) * in.Sum / time.Duration(in.Samples)}
		} else {
			blocked++
			longest = max(longest, blocked)
			probes++
		}
		limit = g.Decide(in).Limit
	}
	t.Logf("nobody let in for %d of 1200 ticks, at most %d in a row", probes, longest)
	if probes == 0 {
		t.Error("no probe was blocked: there was nothing to give up")
	}
	if longest > 5 {
		t.Errorf("nobody was let in for %d ticks in a row, with a round trip of a third of a tick", longest)
	}
}
