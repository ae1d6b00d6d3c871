package sim

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"headgate/pkg/controller"
)

func mustRun(t testing.TB, sc Scenario, a controller.Algorithm) *Result {
	t.Helper()
	r, err := Run(context.Background(), sc, a, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// near fails unless got is within share of want.
func near(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*math.Abs(want) {
		t.Errorf("%s is %.5g, want %.5g within %.0f %%", what, got, want, 100*share)
	}
}

// An M/M/c queue has known answers: the mean time in the system by Erlang's C
// formula, for one worker 1/(mu-lambda).
func TestMeanTimeOfAnMM1Queue(t *testing.T) {
	sc := Scenario{Duration: 2000 * time.Second, Server: Server{Workers: 1, Service: 10 * time.Millisecond, Backlog: 1e6}, Load: Load{Rate: 80}}
	m := &meter{limit: 1e6}
	mustRun(t, sc, m)
	near(t, "mean time", m.sum.Seconds()/float64(m.samples), 1/(100.0-80), 0.05)
}

// Processor sharing has the same mean as FIFO with exponential service, and
// keeps it whatever the distribution.
func TestMeanTimeOfProcessorSharing(t *testing.T) {
	for _, dist := range []string{"exponential", "constant", "lognormal"} {
		sc := Scenario{Duration: 2000 * time.Second, Load: Load{Rate: 80},
			Server: Server{Workers: 1, Service: 10 * time.Millisecond, Discipline: "sharing", Distribution: dist, Backlog: 1e6}}
		m := &meter{limit: 1e6}
		mustRun(t, sc, m)
		near(t, dist, m.sum.Seconds()/float64(m.samples), 1/(100.0-80), 0.07)
	}
}

// With a limit of c units on c workers nobody waits: Erlang's loss formula.
func TestRejectionsFollowErlangsLossFormula(t *testing.T) {
	const c, offered = 8, 10.0 // Erlang
	loss := 1.0
	for k := 1.0; k <= c; k++ {
		loss = offered * loss / (k + offered*loss)
	}
	for _, dist := range []string{"exponential", "constant", "pareto"} {
		sc := Scenario{Duration: 500 * time.Second, Server: Server{Workers: c, Service: 20 * time.Millisecond, Distribution: dist, Shape: 2.5},
			Load: Load{Rate: offered / 0.02}}
		r := mustRun(t, sc, constant(c))
		near(t, "loss with "+dist, float64(r.Rejected)/float64(r.Offered), loss, 0.03)
	}
}

func TestContentionHasItsOptimumWhereTheFormulaSays(t *testing.T) {
	// Closed with a fixed limit n the server finishes c/S/slowdown(n/c).
	sc := Scenario{Duration: 50 * time.Second, Load: Load{Rate: 5000},
		Server: Server{Workers: 10, Service: 20 * time.Millisecond, Discipline: "sharing", Contention: Contention{Factor: 0.5}}}
	for _, n := range []int{10, 20, 40} {
		r := mustRun(t, sc, constant(n))
		want := 500 / (1 + 0.5*(float64(n)/10-1))
		near(t, "completions", float64(r.Good+r.Late)/50, want, 0.03)
	}
}

func TestClosedLoopFollowsTheResponseTimeLaw(t *testing.T) {
	// Saturated, X = c/S and N = X (R + Z).
	sc := Scenario{Duration: 100 * time.Second, Server: Server{Workers: 4, Service: 20 * time.Millisecond},
		Clients: Clients{Count: 100, Think: 200 * time.Millisecond}}
	m := &meter{limit: 1e6}
	r := mustRun(t, sc, m)
	x := float64(m.samples) / 100
	near(t, "throughput", x, 200, 0.02)
	near(t, "clients", x*(m.sum.Seconds()/float64(m.samples)+0.2), 100, 0.03)
	if r.Rejected != 0 {
		t.Errorf("%d rejected", r.Rejected)
	}
}

func TestSameSeedIsTheSameRun(t *testing.T) {
	sc := Scenario{Duration: 20 * time.Second, Load: Load{Capacity: 1.5}, Retry: Retry{Times: 2, After: time.Second}}
	a, b := mustRun(t, sc, constant(20)), mustRun(t, sc, constant(20))
	if a.Good != b.Good || a.P99 != b.P99 || a.Offered != b.Offered {
		t.Errorf("%+v and %+v", a, b)
	}
	sc.Seed = 2
	if c := mustRun(t, sc, constant(20)); c.Offered == a.Offered && c.P99 == a.P99 {
		t.Error("another seed is the same run")
	}
}

func TestEveryAttemptIsAccountedFor(t *testing.T) {
	for name, gate := range map[string]Gate{
		"reset": {}, "drop": {Reject: "drop"},
		"fifo":       {Hold: Hold{MaxWait: 50 * time.Millisecond}},
		"lifo":       {Hold: Hold{MaxWait: 50 * time.Millisecond, Order: "lifo", MaxWaiting: 5}},
		"partitions": {Partitions: []Partition{{0.5, 0.3}, {0.5, 0.3}}},
	} {
		sc := Scenario{Duration: 40 * time.Second, Load: Load{Capacity: 3, Profile: []Point{{0, 1, false}, {20 * time.Second, 1, false}, {20 * time.Second, 0, false}}},
			Retry: Retry{Times: 1, After: 100 * time.Millisecond}, Gate: gate}
		r := mustRun(t, sc, constant(20))
		if r.Offered != r.Admitted+r.Rejected || r.Admitted != r.Good+r.Late || r.Rejected == 0 {
			t.Errorf("%s: %d offered, %d admitted, %d good, %d late, %d rejected", name, r.Offered, r.Admitted, r.Good, r.Late, r.Rejected)
		}
	}
}

func TestDroppedSYNsComeAgainAfterOneThreeAndSevenSeconds(t *testing.T) {
	// One unit blocks the only slot for good, the second is dropped each time.
	sc := Scenario{Duration: 20 * time.Second, Server: Server{Workers: 1, Service: time.Hour, Distribution: "constant"},
		Load: Load{Rate: 20000, Profile: []Point{{0, 1, false}, {time.Millisecond, 0, false}}}, Gate: Gate{Reject: "drop"}, Tick: 100 * time.Millisecond}
	r := mustRun(t, sc, constant(1))
	var at []float64
	for _, p := range r.Series {
		if p.Offered > 0 {
			at = append(at, math.Floor(p.At+1e-6))
		}
	}
	if len(at) != 4 || at[1] != 1 || at[2] != 3 || at[3] != 7 {
		t.Errorf("SYNs at %v", at)
	}
}

func TestHeldUnitsWaitAtMostMaxWait(t *testing.T) {
	sc := Scenario{Duration: 30 * time.Second, Load: Load{Capacity: 1.2}, Server: Server{Distribution: "constant"}}
	without := mustRun(t, sc, constant(16))
	sc.Gate.Hold = Hold{MaxWait: 100 * time.Millisecond}
	with := mustRun(t, sc, constant(16))
	// No worker queue: a unit takes its service and what it was held.
	if with.P99 > 0.121 || with.P99 < 0.1 {
		t.Errorf("p99 %.4f s, want service (20 ms) and at most 100 ms", with.P99)
	}
	if with.Goodput < without.Goodput {
		t.Errorf("goodput %.0f/s held, %.0f/s rejected at once", with.Goodput, without.Goodput)
	}
}

func TestPartitionsKeepTheirShares(t *testing.T) {
	sc := Scenario{Duration: 60 * time.Second, Load: Load{Capacity: 5},
		Gate: Gate{Partitions: []Partition{{Arrivals: 0.5, Share: 0.9}, {Arrivals: 0.5, Share: 0.1}}}}
	r := mustRun(t, sc, constant(20))
	near(t, "first share", r.Shares[0], 0.9, 0.05)
	near(t, "second share", r.Shares[1], 0.1, 0.05)
}

func TestTheFirstRefusalEndsABurstAtOnce(t *testing.T) {
	// No tick comes after the first. 50 units are admitted, then none until
	// fewer than 20 are in flight; the 16 workers finish 64 by the end.
	sc := Scenario{Duration: 4900 * time.Millisecond, Tick: 5 * time.Second, Load: Load{Capacity: 10},
		Server: Server{Service: time.Second, Distribution: "constant"}}
	r := mustRun(t, sc, &script{decisions: []controller.Decision{{Limit: 50, AfterRefusal: 20}}})
	near(t, "admitted", float64(r.Admitted), 64+20, 0.05)
}

// A cohort counts the first units after its epoch, and none from before.
func TestCohortHoldsOnlyUnitsAdmittedAfterItsEpoch(t *testing.T) {
	probe := controller.Decision{Limit: 10, AfterRefusal: 10, CohortEpoch: 1, CohortSize: 2}
	s := &script{decisions: []controller.Decision{{Limit: 10}, probe, probe}}
	g := newGate(s, nil)
	jobs := [4]job{}
	g.tick(0)
	g.admit(0.5, &jobs[0])
	g.tick(1)
	for i := 1; i < 4; i++ {
		g.admit(1+float64(i)/10, &jobs[i])
	}
	g.finish(2, &jobs[0])   // before the epoch
	g.finish(2, &jobs[3])   // third after it
	g.finish(2.1, &jobs[2]) // second
	g.tick(3)
	want := controller.Cohort{Epoch: 1, Admitted: 2, Done: 1, Sum: 900 * time.Millisecond, Ages: 1900 * time.Millisecond}
	if s.last.Cohort != want {
		t.Errorf("%+v, want %+v", s.last.Cohort, want)
	}
	if s.last.Samples != 3 || s.last.MaxInFlight != 4 {
		t.Errorf("%d samples, %d in flight", s.last.Samples, s.last.MaxInFlight)
	}
}

func TestValidateNamesTheKey(t *testing.T) {
	for key, sc := range map[string]Scenario{
		"duration":              {Duration: -1, Load: Load{Rate: 1}},
		"server.distribution":   {Load: Load{Rate: 1}, Server: Server{Distribution: "cauchy"}},
		"load:":                 {},
		"from:":                 {Load: Load{Rate: 1}, From: 2 * time.Minute},
		"server.classes":        {Load: Load{Rate: 1}, Server: Server{Classes: []Class{{0.5, 1}}}},
		"gate.reject":           {Load: Load{Rate: 1}, Gate: Gate{Reject: "shrug"}},
		"server.changes[0]":     {Load: Load{Rate: 1}, Server: Server{Changes: []Change{{Speed: -1}}}},
		"load.profile[1].at":    {Load: Load{Rate: 1, Profile: []Point{{At: 2}, {At: 1}}}},
		"server.stalls.for":     {Load: Load{Rate: 1}, Server: Server{Stalls: Stalls{Every: 1, For: 2}}},
		"gate.partitions":       {Load: Load{Rate: 1}, Gate: Gate{Partitions: []Partition{{0.5, 2}}}},
		"server.shape":          {Load: Load{Rate: 1}, Server: Server{Distribution: "pareto", Shape: 1}},
		"clients.count":         {Clients: Clients{Count: -1}},
		"load: rate and":        {Load: Load{Rate: 1, Capacity: 1}},
		"gate.hold.max_waiting": {Load: Load{Rate: 1}, Gate: Gate{Hold: Hold{MaxWaiting: -1}}},
	} {
		_, err := Run(context.Background(), sc, constant(1), nil)
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestBestStaticFindsTheOptimum(t *testing.T) {
	sc := Scenario{Duration: 20 * time.Second, Load: Load{Capacity: 3},
		Server: Server{Workers: 20, Discipline: "sharing", Contention: Contention{Factor: 2}}}
	limit, good, err := BestStatic(context.Background(), sc, []uint64{1})
	if err != nil {
		t.Fatal(err)
	}
	near(t, "limit", float64(limit), 20, 0.15)
	near(t, "goodput", good/20, 1000, 0.05)
}

func BenchmarkTenMinutesAtAThousandASecond(b *testing.B) {
	sc := Scenario{Duration: 10 * time.Minute, Load: Load{Rate: 1000}, Server: Server{Workers: 16}}
	for b.Loop() {
		mustRun(b, sc, constant(30))
	}
}

// meter is a fixed limit that adds up its samples.
type meter struct {
	limit   int
	samples uint64
	sum     time.Duration
}

func (m *meter) Decide(t controller.Tick) controller.Decision {
	m.samples += t.Samples
	m.sum += t.Sum
	return controller.Decision{Limit: m.limit, AfterRefusal: m.limit}
}

func (m *meter) Terms() []controller.Term { return nil }

// script decides what it was told to, and keeps the last tick.
type script struct {
	decisions []controller.Decision
	last      controller.Tick
}

func (s *script) Decide(t controller.Tick) controller.Decision {
	s.last = t
	d := s.decisions[0]
	if len(s.decisions) > 1 {
		s.decisions = s.decisions[1:]
	}
	return d
}

func (s *script) Terms() []controller.Term { return nil }
