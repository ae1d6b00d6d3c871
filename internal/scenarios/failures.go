// Package scenarios holds what the algorithms of package controller are judged
// by: the failures that limiters are known for, scenarios to tune on, and
// scenarios drawn at random to report on.
package scenarios

import (
	"context"
	"fmt"
	"time"

	"headgate/pkg/controller"
	"headgate/pkg/sim"
)

// Failure is something that a limiter is known to get wrong.
type Failure struct {
	Number int
	Words  string // what happens
	Wanted string
	try    func(*trial)
}

// Outcome is how an algorithm did.
type Outcome struct {
	Pass   bool
	Figure string // what was measured
	Moot   bool   // the algorithm has nothing that could fail so
}

// Try runs the failure's scenario. settings are those of a configuration;
// where the scenario needs a bound on the limit it sets its own.
func (f Failure) Try(ctx context.Context, algorithm string, settings controller.Params) (Outcome, error) {
	t := &trial{ctx: ctx, algorithm: algorithm, settings: settings}
	f.try(t)
	return t.Outcome, t.err
}

// Settings returns what an algorithm has to be told before it is judged: aimd
// knows no latency of its own, and the warm-up of blog would outlast most
// scenarios. service is the service time without a queue.
func Settings(algorithm string, service time.Duration) controller.Params {
	switch algorithm {
	case "aimd":
		return controller.Params{Timeout: new(5 * service)}
	case "blog":
		return controller.Params{WarmUp: new(time.Duration(0))}
	}
	return controller.Params{}
}

// SettingsFor is the same for a scenario, with a seed that is the same each time.
func SettingsFor(algorithm string, sc sim.Scenario) controller.Params {
	p := Settings(algorithm, time.Duration(sc.WithDefaults().MeanService()*float64(time.Second)))
	p.Seed = 1
	return p
}

// trial is one run of a failure's scenario.
type trial struct {
	Outcome
	ctx       context.Context
	algorithm string
	settings  controller.Params
	err       error
}

// judge notes the outcome and the figure that it rests on.
func (t *trial) judge(pass bool, format string, args ...any) {
	t.Pass, t.Figure = pass, fmt.Sprintf(format, args...)
}

// moot says that an algorithm without probes has nothing to fail with.
func (t *trial) moot(why string) { t.Moot, t.Pass, t.Figure = true, true, why }

// new returns the algorithm with its settings, changed for this trial.
func (t *trial) new(change ...func(*controller.Params)) controller.Algorithm {
	p := t.settings
	for _, c := range change {
		c(&p)
	}
	a, err := controller.New(t.algorithm, p)
	if err != nil {
		t.err = err
		return fallback{}
	}
	return a
}

// run simulates, and ends the trial by its error when there is one.
func (t *trial) run(sc sim.Scenario, a controller.Algorithm) *sim.Result {
	if t.err != nil {
		return &sim.Result{Series: make([]sim.SeriesPoint, 1)}
	}
	r, err := sim.Run(t.ctx, sc, a, nil)
	if err != nil {
		t.err = err
		return &sim.Result{Series: make([]sim.SeriesPoint, 1)}
	}
	return r
}

// fallback stands in for an algorithm that could not be made.
type fallback struct{}

func (fallback) Decide(controller.Tick) controller.Decision {
	return controller.Decision{Limit: 1, AfterRefusal: 1}
}
func (fallback) Terms() []controller.Term { return nil }

func initial(n int) func(*controller.Params) { return func(p *controller.Params) { p.Initial = &n } }

func bounds(lo, hi int) func(*controller.Params) {
	return func(p *controller.Params) { p.Min, p.Max = &lo, &hi }
}

// term returns one of the terms of an algorithm, and whether it has it.
func term(a controller.Algorithm, name string) (float64, bool) {
	for _, t := range a.Terms() {
		if t.Name == name {
			return t.Value, true
		}
	}
	return 0, false
}

// watched tells of every decision of an algorithm.
type watched struct {
	controller.Algorithm
	after func(controller.Tick, controller.Decision)
}

func (w watched) Decide(t controller.Tick) controller.Decision {
	d := w.Algorithm.Decide(t)
	w.after(t, d)
	return d
}

// limitOf is the algorithm's own limit, before burst, dither and probe.
func limitOf(a controller.Algorithm) float64 {
	l, _ := term(a, "limit")
	return l
}

// bench feeds an algorithm windows of 1 s in which the limit is always in use
// and something is refused. No probe can be timed: what the round trip is does
// not depend on the limit, so that nothing would be learned from one.
type bench struct {
	controller.Algorithm
	now   time.Duration
	limit int
}

func newBench(a controller.Algorithm) *bench {
	return &bench{Algorithm: a, limit: a.Decide(controller.Tick{}).Limit}
}

func (b *bench) tick(t controller.Tick) {
	b.now += time.Second
	t.Now = b.now
	b.limit = b.Decide(t).Limit
}

// windows feeds n windows of 50 samples and returns the limits.
func (b *bench) windows(n int, rtt time.Duration) []int {
	limits := make([]int, n)
	for i := range limits {
		b.tick(controller.Tick{Samples: 50, Sum: 50 * rtt, MaxInFlight: b.limit, Refused: 1})
		limits[i] = b.limit
	}
	return limits
}
