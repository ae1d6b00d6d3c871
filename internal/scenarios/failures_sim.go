package scenarios

import (
	"fmt"
	"math"
	"strings"
	"time"

	"headgate/pkg/controller"
	"headgate/pkg/sim"
)

func share(part, whole int) float64 { return 100 * float64(part) / float64(max(whole, 1)) }

func queuedProbe(t *trial) {
	if t.algorithm == "fixed" || t.algorithm == "aimd" {
		t.moot("no baseline")
		return
	}
	var figures []string
	pass := true
	for seed := range uint64(seeds) {
		a := t.new(initial(200))
		found, ok := 0.0, false
		w := watched{a, func(controller.Tick, controller.Decision) {
			if n, has := term(a, "probes_total"); !ok && has && n >= 2 {
				found, _ = term(a, "baseline_seconds")
				ok = true
			}
		}}
		sc := scenario("", load(2))
		sc.Seed = seed + 1
		t.run(sc, w)
		if !ok { // without such probes: what it holds for the baseline after a minute
			found, _ = term(a, "baseline_seconds")
		}
		pass = pass && found > 0.014 && found < 0.026
		figures = append(figures, fmt.Sprintf("%.1f", 1000*found))
	}
	t.judge(pass, "%s ms of 20", strings.Join(figures, ", "))
}

func fewFast(t *trial) {
	a := t.new()
	lowest := math.Inf(1)
	w := watched{a, func(k controller.Tick, _ controller.Decision) {
		if k.Now >= 20*time.Second {
			lowest = min(lowest, limitOf(a))
		}
	}}
	t.run(scenario("", step(.5, 2, 10), classes(.999, 1, .001, .01)), w)
	t.judge(lowest >= 16, "lowest limit %.1f, 16 workers", lowest)
}

func probeCost(t *trial) {
	sc := scenario("", load(2), span(600, 60, 600))
	sc.Deadline = 1e6 // count what is finished, at once or not
	var without controller.Algorithm
	switch t.algorithm {
	case "guarded":
		never := 24 * time.Hour
		without = t.new(func(p *controller.Params) { p.ProbeMin, p.ProbeMax = &never, &never })
	case "gradient":
		without = t.new(func(p *controller.Params) { p.ProbeInterval = new(-1) })
	default:
		t.moot("no probe that lowers the limit")
		return
	}
	with, none := t.run(sc, t.new()), t.run(sc, without)
	cost := 100 - share(with.Good, none.Good)
	t.judge(cost < 1, "%.2f %% of what is finished without probes", cost)
}

func probeFloor(t *trial) {
	floor := 12
	a := t.new(bounds(floor, 1000), initial(20))
	if t.algorithm != "guarded" {
		t.moot("no probe limit")
		return
	}
	below, raised, lowest := 0, 0, math.Inf(1)
	before := math.MaxInt
	w := watched{a, func(_ controller.Tick, d controller.Decision) {
		if d.CohortSize > 0 {
			if d.Limit < floor {
				below++
			}
			if d.Limit > before {
				raised++
			}
		} else {
			before = d.AfterRefusal
		}
		lowest = min(lowest, limitOf(a))
	}}
	t.run(scenario("", load(2)), w)
	t.judge(below > 0 && raised == 0 && lowest >= float64(floor),
		"limit at least %.0f with min %d, %d ticks below it in a probe, %d above the limit", lowest, floor, below, raised)
}

func floorTooHigh(t *trial) {
	a := t.new(bounds(100, 1000), initial(100))
	at, ticks := 0, 0
	w := watched{a, func(k controller.Tick, _ controller.Decision) {
		if k.Now < 20*time.Second {
			return
		}
		ticks++
		if v, _ := term(a, "floored"); v == 1 {
			at++
		}
	}}
	t.run(scenario("", load(2)), w)
	if _, has := term(a, "floored"); !has {
		t.judge(false, "not reported")
		return
	}
	t.judge(at > ticks/2, "reported in %.0f %% of the ticks", share(at, ticks))
}

func shortBursts(t *trial) {
	// 3x for 50 ms, and between so much that the mean is 0.5x.
	r := t.run(scenario("", repeat(1, .05, 3, (.5-.05*3)/.95)), t.new())
	rejected := share(r.Rejected, r.Offered)
	t.judge(rejected < 1, "%.2f %% rejected", rejected)
}

// flashSale has more come just when the target becomes ten times slower, and those who
// wait know it: an answer is as good as before when it takes ten times as long.
func flashSale(t *trial) {
	const by, from, to = 10, 20, 50
	sc := scenario("", profile(false, 0, .6, from, 1.5, to, .6), changes(
		sim.Change{At: sec(from), Speed: 1. / by, Deadline: by}, sim.Change{At: sec(to), Speed: 1, Deadline: 1}))
	sc.Server.Service = 50 * time.Millisecond
	sc.From, sc.To = sec(from), sec(to)
	carries := float64(sc.Server.Workers) / (by * sc.Server.Service.Seconds())
	least := math.Inf(1)
	for seed := range uint64(5) {
		sc.Seed = seed + 1
		least = min(least, t.run(sc, t.new()).Goodput/carries)
	}
	t.judge(least >= .6, "%.0f %%", 100*least)
}

func smallShift(t *trial) {
	a := t.new()
	before, n, lowest := 0.0, 0.0, math.Inf(1)
	w := watched{a, func(k controller.Tick, _ controller.Decision) {
		switch {
		case k.Now >= 30*time.Second:
			lowest = min(lowest, limitOf(a))
		case k.Now >= 20*time.Second:
			before += limitOf(a)
			n++
		}
	}}
	t.run(scenario("", load(.6), changes(sim.Change{At: sec(30), Speed: .8})), w)
	before /= max(n, 1)
	fall := 100 * (1 - lowest/before)
	t.judge(fall < 5, "%.0f before, lowest %.0f: falls %.1f %%", before, lowest, max(fall, 0))
}

func boundedBaseline(t *trial) {
	bound := 50 * time.Millisecond
	if t.algorithm != "guarded" {
		t.judge(false, "no bound on the baseline")
		return
	}
	a := t.new(func(p *controller.Params) { p.MaxBaseline = &bound })
	onset, ticks, highest, base := 0.0, 0.0, 0.0, 0.0
	w := watched{a, func(k controller.Tick, _ controller.Decision) {
		b, _ := term(a, "baseline_seconds")
		base = max(base, b)
		switch {
		case k.Now < 50*time.Second:
		case k.Now < 60*time.Second:
			onset += limitOf(a)
			ticks++
		case k.Now > 90*time.Second:
			highest = max(highest, limitOf(a))
		}
	}}
	t.run(scenario("", server(4, .02), load(2), span(1860, 60, 1860), changes(sim.Change{At: sec(60), Speed: .1})), w)
	onset /= max(ticks, 1)
	t.judge(base <= bound.Seconds() && highest <= onset, "baseline at most %.0f ms, limit %.1f before, at most %.1f after", 1000*base, onset, highest)
}

// seeds is how many runs a scenario makes where chance could decide it.
const seeds = 5

func coldStart(t *trial) {
	first, rest := 0.0, 0.0
	for seed := range uint64(seeds) {
		sc := scenario("", server(400, .1), load(.8), span(60, 0, 5))
		sc.Seed = seed + 1
		r := t.run(sc, t.new())
		first += share(r.Rejected, r.Offered) / seeds
		sc.From, sc.To = sec(5), sec(60)
		r = t.run(sc, t.new())
		rest += share(r.Rejected, r.Offered) / seeds
	}
	t.judge(first < 20 && rest < 1, "%.1f %% rejected in 5 s, %.2f %% after", first, rest)
}

func lowRate(t *trial) {
	a := t.new(initial(100))
	r := t.run(scenario("", server(1, .5), rate(3), span(240, 120, 240)), a)
	t.judge(limitOf(a) <= 50 && r.Good > 0, "limit from 100 to %.0f after 4 min, p99 %.0f service times", limitOf(a), r.P99Service)
}

func stall(t *trial) {
	rejected, back := 0.0, 1.0
	for seed := range uint64(seeds) {
		a := t.new()
		before := 0.0
		w := watched{a, func(k controller.Tick, _ controller.Decision) {
			switch at := k.Now % (10 * time.Second); {
			case k.Now < 20*time.Second:
			case at < 50*time.Millisecond:
				before = limitOf(a)
			case at > 1250*time.Millisecond && at < 1350*time.Millisecond:
				back = min(back, limitOf(a)/before)
			}
		}}
		sc := scenario("", load(.5), span(120, 20, 120), stalls(10, .3))
		sc.Seed = seed + 1
		r := t.run(sc, w)
		rejected += share(r.Rejected, r.Offered) / seeds
	}
	t.judge(rejected < 1 && back > 0.9, "%.2f %% rejected, limit at least at %.0f %% 1 s after", rejected, 100*back)
}

func lastingShift(t *trial) {
	r := t.run(scenario("", load(.25), span(120, 50, 120), longer(3, 20)), t.new())
	t.judge(r.Rejected == 0, "%d of %d rejected", r.Rejected, r.Offered)
}

func microseconds(t *trial) {
	r := t.run(scenario("", server(1, 25e-6), rate(10000), span(20, 2, 20)), t.new())
	lowest := math.MaxInt
	for _, p := range r.Series {
		lowest = min(lowest, p.Refusing)
	}
	rejected := share(r.Rejected, r.Offered)
	t.judge(lowest >= 1 && rejected < 1, "limit at least %d, %.2f %% rejected", lowest, rejected)
}

func shares(t *trial) {
	sc := scenario("", server(64, .02), load(3))
	sc.Gate.Partitions = []sim.Partition{{Arrivals: .5, Share: .9}, {Arrivals: .5, Share: .1}}
	over, highest := 0, 0
	w := watched{t.new(), func(k controller.Tick, d controller.Decision) {
		if k.MaxInFlight > highest { // the highest limit so far
			over++
		}
		highest = max(highest, d.Limit)
	}}
	r := t.run(sc, w)
	if t.err != nil {
		return
	}
	t.judge(math.Abs(r.Shares[0]-.9) < .05 && over == 0, "%.1f and %.1f %%", 100*r.Shares[0], 100*r.Shares[1])
}

// Failures returns the scenarios that every adaptive algorithm is judged by.
func Failures() []Failure {
	return []Failure{
		{1, "round trip 5 s for 600 windows after 50 ms", "the limit never rises above its value at onset", stuckLatency},
		{2, "closed loop: round trip S L/c for 20 min, c = 40", "at most 2c + sqrt(2c)", closedLoop},
		{3, "2x load on a limit of 200 from the start, 16 workers, five seeds", "baseline within 30 % of S after two probes", queuedProbe},
		{4, "1 of 1000 units takes S/100, at 2x load", "the limit does not fall below the number of workers", fewFast},
		{5, "units from before a probe finish during it", "they are not in its sample", unitsFromBefore},
		{6, "a probe without a sample", "baseline and limit as before, and the limit moves again in the next window", emptyProbe},
		{7, "what probes cost, 9 min at 2x load", "less than 1 % of the units", probeCost},
		{8, "min 12, the probe needs less", "the limit keeps to min, the probe does not, nor does it raise the limit", probeFloor},
		{9, "min 100 for 16 workers", "at the floor and still congested: reported", floorTooHigh},
		{10, "bursts of 3x for 50 ms each second, mean 0.5x", "less than 1 % rejected", shortBursts},
		{11, "service time 20 to 25 ms at 0.6x load", "the limit falls by less than 5 %", smallShift},
		{12, "20 connections that stay for an hour, 200 exchanges a second", "timed by exchange; the limit leaves them room", longConnections},
		{13, "30 min at 10 times the service time, max_baseline 50 ms", "the baseline keeps to it, the limit does not grow", boundedBaseline},
		{14, "400 workers, 0.8x load from cold, five seeds", "less than 20 % rejected in 5 s, less than 1 % after", coldStart},
		{15, "3 units a second, 1.5x load", "the limit still adapts", lowRate},
		{16, "stalls of 300 ms every 10 s at 0.5x load, five seeds", "less than 1 % rejected, the limit back within 1 s", stall},
		{17, "service time x3 for good at 0.25x load", "no rejection after 30 s", lastingShift},
		{18, "25 us service time, 10000 units a second", "at least min, and traffic flows", microseconds},
		{19, "two partitions, 90 and 10 %, equal arrivals, 3x load", "shares kept within 5 %, never more in flight than the limit", shares},
		{20, "round trips of 0, negative and absurd", "the limit stays finite and in its bounds", wrongRTT},
		{21, "round trip 20 ms for 60 windows, 200 ms for 30, 20 ms again; min 20, max 200", "at the floor in between, above 90 % of before within 60 windows", badPhase},
		{22, "round trip 50 ms for 600 windows, then 500 ms for 2000", "from window 30 on at most half the limit at onset", lastingOverload},
		{23, "idle, one sample of 0.2 ms a window for 10 min, then 50 of 20 ms", "the limit not below its start", idlePort},
		{24, "ten times slower for 30 s while load grows from 0.6x to 1.5x, five seeds", "at least 60 % of what the target carries then is answered in ten service times of then", flashSale},
	}
}
