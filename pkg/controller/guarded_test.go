package controller

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
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

// Whatever the ticks hold, the limit is finite and in its bounds, and only a
// probe goes below the minimum, down to the probe's own floor.
func TestGuardedKeepsItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := DefaultGuardedParams()
		p.Min = rapid.IntRange(1, 50).Draw(t, "min")
		p.Max = rapid.IntRange(p.Min, 500).Draw(t, "max")
		p.Initial = rapid.IntRange(p.Min, p.Max).Draw(t, "initial")
		p.ProbeFloor = rapid.IntRange(1, p.Max).Draw(t, "floor")
		p.MaxBaseline = time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "max baseline"))
		g, err := NewGuarded(p)
		if err != nil {
			t.Fatal(err)
		}
		var d Decision
		now := time.Duration(rapid.Int64Range(-1e15, 1e15).Draw(t, "origin"))
		for range 200 {
			now += time.Duration(rapid.Int64Range(-1e8, 3e9).Draw(t, "step"))
			d = g.Decide(Tick{
				Now:         now,
				Samples:     rapid.Uint64Range(0, 1000).Draw(t, "samples"),
				Sum:         time.Duration(rapid.Int64().Draw(t, "sum")),
				MaxInFlight: rapid.IntRange(-1, 1e6).Draw(t, "in flight"),
				Refused:     rapid.Uint64Range(0, 3).Draw(t, "refused"),
				Observing:   rapid.Bool().Draw(t, "observing"),
				Cohort: Cohort{
					Epoch:    d.CohortEpoch - rapid.Uint32Range(0, 1).Draw(t, "behind"),
					Admitted: rapid.IntRange(-1, 50).Draw(t, "admitted"),
					Done:     rapid.IntRange(-1, 50).Draw(t, "done"),
					Sum:      time.Duration(rapid.Int64().Draw(t, "cohort sum")),
					Ages:     time.Duration(rapid.Int64().Draw(t, "ages")),
				},
			})
			least := p.Min
			if d.CohortSize > 0 {
				least = min(p.Min, p.ProbeFloor)
			}
			if d.Limit < least || d.Limit > p.Max || d.AfterRefusal < least || d.AfterRefusal > d.Limit {
				t.Fatalf("%+v with bounds %d to %d", d, p.Min, p.Max)
			}
			for _, term := range g.Terms() {
				if math.IsNaN(term.Value) || math.IsInf(term.Value, 0) {
					t.Fatalf("%s is %v", term.Name, term.Value)
				}
			}
			if p.MaxBaseline > 0 && g.Baseline() > p.MaxBaseline {
				t.Fatalf("baseline %v, at most %v", g.Baseline(), p.MaxBaseline)
			}
		}
	})
}

// target is a server with FIFO workers and a constant service time under
// lasting overload, worked out a tick at a time.
type target struct {
	*Guarded
	workers int
	service time.Duration
	untimed bool // the kernel times no units
	now     time.Duration
	last    Decision
	probes  []int // their limits
}

// run lets n ticks pass, each with as many in flight as the limit allows.
func (s *target) run(n int) {
	for range n {
		s.now += 100 * time.Millisecond
		limit := max(s.last.AfterRefusal, 1)
		rtt := s.service * time.Duration(max(limit, s.workers)) / time.Duration(s.workers)
		rate := float64(limit) / rtt.Seconds()
		t := Tick{Now: s.now, Samples: uint64(rate / 10), MaxInFlight: limit, Refused: 10}
		t.Sum = time.Duration(t.Samples) * rtt
		if !s.untimed {
			size := s.last.CohortSize
			t.Cohort = Cohort{Epoch: s.last.CohortEpoch, Admitted: size, Done: size, Sum: time.Duration(size) * rtt}
		}
		d := s.Decide(t)
		if d.CohortEpoch != s.last.CohortEpoch {
			s.probes = append(s.probes, d.Limit)
		}
		s.last = d
	}
}

// With an initial limit of 200 the first baseline has a queue of 49 service
// times in it. Probes halve their limit until they carry more than it.
func TestGuardedFindsTheServiceTimeUnderAQueue(t *testing.T) {
	s := &target{Guarded: newGuarded(t, func(p *GuardedParams) { p.Initial = 200 }), workers: 4, service: 20 * time.Millisecond}
	s.run(100)
	if b := s.Baseline(); b < 20*time.Millisecond || b > 24*time.Millisecond {
		t.Errorf("baseline %v after probes at %v, want 20 ms", b, s.probes)
	}
	if s.limit < 4 || s.limit > 12 {
		t.Errorf("limit %.1f for 4 workers", s.limit)
	}
}

func TestGuardedDoesNotProbeWhatIsNotTimed(t *testing.T) {
	s := &target{Guarded: newGuarded(t, nil), workers: 4, service: 20 * time.Millisecond, untimed: true}
	s.run(600)
	if len(s.probes) > 1 {
		t.Errorf("probes at %v although no unit is ever timed", s.probes)
	}
	if s.Baseline() == 0 {
		t.Error("no baseline")
	}
}

func TestGuardedProbeTakesATenthOfTheTimeAtMost(t *testing.T) {
	s := &target{Guarded: newGuarded(t, nil), workers: 16, service: 20 * time.Millisecond}
	s.run(100)
	probing := 0
	for range 6000 {
		s.run(1)
		if s.last.CohortSize > 0 {
			probing++
		}
	}
	if probing == 0 || probing > 60 {
		t.Errorf("probing in %d of 6000 ticks of a steady overload", probing)
	}
}

// Nothing is refused, but more than the limit stays in flight: no burst.
func TestGuardedEndsABurstThatLasts(t *testing.T) {
	g := newGuarded(t, nil)
	now := time.Duration(0)
	var d Decision
	tick := func(inFlight int, refused uint64) {
		now += 100 * time.Millisecond
		size := d.CohortSize
		d = g.Decide(Tick{Now: now, Samples: 50, Sum: time.Second, MaxInFlight: inFlight, Refused: refused,
			Cohort: Cohort{Epoch: d.CohortEpoch, Admitted: size, Done: size, Sum: time.Duration(size) * 20 * time.Millisecond}})
	}
	for range 50 {
		tick(10, 0)
	}
	if d.Limit <= d.AfterRefusal {
		t.Fatalf("no burst allowance: %+v", d)
	}
	ticks := 0
	for d.Limit > d.AfterRefusal && ticks < 50 {
		tick(d.AfterRefusal+10, 0)
		ticks++
	}
	if ticks < 4 || ticks > 6 {
		t.Errorf("the burst ended after %d ticks, want half a second", ticks)
	}
}

func TestGuardedComesBackAfterAStall(t *testing.T) {
	g := newGuarded(t, func(p *GuardedParams) { p.Initial = 100 })
	now := time.Duration(0)
	var d Decision
	tick := func(rtt time.Duration, inFlight int, refused uint64) {
		now += 100 * time.Millisecond
		size := d.CohortSize
		d = g.Decide(Tick{Now: now, Samples: 50, Sum: 50 * rtt, MaxInFlight: inFlight, Refused: refused,
			Cohort: Cohort{Epoch: d.CohortEpoch, Admitted: size, Done: size, Sum: time.Duration(size) * 20 * time.Millisecond}})
	}
	for range 50 {
		tick(20*time.Millisecond, 10, 0)
	}
	before := g.limit
	for range 5 {
		tick(400*time.Millisecond, 150, 10)
	}
	if g.limit > 0.8*before {
		t.Fatalf("limit %.0f in the stall, %.0f before it", g.limit, before)
	}
	for range 10 {
		tick(20*time.Millisecond, 10, 0)
	}
	if g.limit < 0.9*before {
		t.Errorf("limit %.0f a second after the stall, %.0f before it", g.limit, before)
	}
}

// More long polls than the initial limit are there when the agent starts. None
// of them ever finishes, so that nothing can be measured; a newcomer has to get
// in all the same, in a time that a person would wait.
func TestGuardedIsNotStuckBehindUnitsThatNeverFinish(t *testing.T) {
	g, err := NewGuarded(DefaultGuardedParams())
	if err != nil {
		t.Fatal(err)
	}
	const polls = 25
	now := time.Duration(0)
	limit := 20
	for limit <= polls {
		now += 100 * time.Millisecond
		if now > 20*time.Second {
			t.Fatalf("after %v the limit is %d, with %d units that never finish", now, limit, polls)
		}
		limit = g.Decide(Tick{Now: now, MaxInFlight: max(limit, polls), Refused: 5}).Limit
	}
	t.Logf("somebody else got in after %v", now)
}

// A window of a thousand targets: the loop's arithmetic has to fit into a
// fraction of it.
func BenchmarkThousandTargets(b *testing.B) {
	algorithms := make([]Algorithm, 1000)
	for i := range algorithms {
		a, err := New("guarded", Params{})
		if err != nil {
			b.Fatal(err)
		}
		algorithms[i] = a
	}
	now := time.Duration(0)
	b.ReportAllocs()
	for b.Loop() {
		now += 100 * time.Millisecond
		for _, a := range algorithms {
			a.Decide(Tick{Now: now, Samples: 50, Sum: time.Second, MaxInFlight: 20})
		}
	}
}

// An allowance that shrinks with what is completed is the reason of the change,
// not the growth of the limit before.
func TestGuardedTellsOfItsAllowance(t *testing.T) {
	g, err := NewGuarded(DefaultGuardedParams())
	if err != nil {
		t.Fatal(err)
	}
	const window = 100 * time.Millisecond
	now, shrank := time.Duration(0), 0
	tick := func(done uint64) {
		now += window
		before := g.decision
		d := g.Decide(Tick{Now: now, Samples: done, Sum: time.Duration(done) * 20 * time.Millisecond, MaxInFlight: 15})
		if d.Limit < before.Limit && d.AfterRefusal == before.AfterRefusal && d.Limit > d.AfterRefusal {
			shrank++
			if d.Reason != ReasonBurst {
				t.Fatalf("%d to %d at a limit of %d: %q", before.Limit, d.Limit, d.AfterRefusal, d.Reason)
			}
		}
	}
	for range 100 {
		tick(75)
	}
	for range 300 {
		tick(10)
	}
	if shrank == 0 {
		t.Errorf("the allowance never shrank: %+v", g.decision)
	}
}
