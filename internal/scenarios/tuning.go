package scenarios

import (
	"math"
	"time"

	"headgate/pkg/sim"
)

// Tuning returns the scenarios that the guarded algorithm was tuned on.
// Nothing measured on them says how good it is; see Drawn for that.
func Tuning() []sim.Scenario {
	return append(tuningCore(), tuningMore()...)
}

// option changes a scenario under construction.
type option func(*sim.Scenario)

// scenario begins with 16 workers at 20 ms, 60 s of which the last 40 count.
func scenario(name string, options ...option) sim.Scenario {
	s := sim.Scenario{
		Name: name, Duration: time.Minute, From: 20 * time.Second, To: time.Minute,
		Server: sim.Server{Workers: 16, Service: 20 * time.Millisecond},
	}
	for _, o := range options {
		o(&s)
	}
	return s
}

func sec(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }

func server(workers int, service float64) option {
	return func(s *sim.Scenario) { s.Server.Workers, s.Server.Service = workers, sec(service) }
}

func span(duration, from, to float64) option {
	return func(s *sim.Scenario) { s.Duration, s.From, s.To = sec(duration), sec(from), sec(to) }
}

func load(capacity float64) option {
	return func(s *sim.Scenario) { s.Load.Capacity = capacity }
}

func step(before, after, at float64) option { return profile(false, 0, before, at, after) }

// profile sets the load to values of capacity at times, given in turn.
func profile(ramp bool, points ...float64) option {
	return func(s *sim.Scenario) {
		s.Load.Capacity = 1
		for i := 0; i+1 < len(points); i += 2 {
			s.Load.Profile = append(s.Load.Profile, sim.Point{At: sec(points[i]), Times: points[i+1], Ramp: ramp})
		}
	}
}

func rate(perSecond float64) option {
	return func(s *sim.Scenario) { s.Load.Rate, s.Load.Capacity = perSecond, 0 }
}

// repeat alternates between two loads.
func repeat(every, first, on, off float64) option {
	return func(s *sim.Scenario) {
		profile(false, 0, on, first, off)(s)
		s.Load.Repeat = sec(every)
	}
}

// flash rises within a second at from and falls back at to.
func flash(low, high, from, to float64) option {
	return func(s *sim.Scenario) {
		s.Load.Capacity = 1
		s.Load.Profile = []sim.Point{
			{Times: low}, {At: sec(from), Times: low}, {At: sec(from + 1), Times: high, Ramp: true}, {At: sec(to), Times: low},
		}
	}
}

func distribution(name string, shape float64) option {
	return func(s *sim.Scenario) { s.Server.Distribution, s.Server.Shape = name, shape }
}

func sharing(s *sim.Scenario) { s.Server.Discipline = "sharing" }

func linear(factor float64) option { return power(factor, 1, 1) }

func power(factor, exponent, from float64) option {
	return func(s *sim.Scenario) {
		s.Server.Contention = sim.Contention{Factor: factor, Power: exponent, From: from}
	}
}

// convoy grows with the logarithm of the waiters, as a contended lock does.
func convoy(factor float64) option {
	return func(s *sim.Scenario) { s.Server.Contention = sim.Contention{Factor: factor, Log: true} }
}

func classes(sharesAndTimes ...float64) option {
	return func(s *sim.Scenario) {
		for i := 0; i+1 < len(sharesAndTimes); i += 2 {
			s.Server.Classes = append(s.Server.Classes, sim.Class{Share: sharesAndTimes[i], Times: sharesAndTimes[i+1]})
		}
	}
}

func changes(c ...sim.Change) option {
	return func(s *sim.Scenario) { s.Server.Changes = append(s.Server.Changes, c...) }
}

// slow divides the speed for a while.
func slow(by, from, to float64) option {
	return changes(sim.Change{At: sec(from), Speed: 1 / by}, sim.Change{At: sec(to), Speed: 1})
}

// longer makes service slower for good, and the deadline with it.
func longer(by, at float64) option {
	return changes(sim.Change{At: sec(at), Speed: 1 / by, Deadline: by})
}

func stalls(every, length float64) option {
	return func(s *sim.Scenario) { s.Server.Stalls = sim.Stalls{Every: sec(every), For: sec(length)} }
}

func retries(times int, after, factor float64) option {
	return func(s *sim.Scenario) {
		s.Retry.Times, s.Retry.After, s.Retry.Factor = times, sec(after), factor
	}
}

func drop(s *sim.Scenario) { s.Gate.Reject = "drop" }

func timeout(after float64) option {
	return func(s *sim.Scenario) { s.Retry.Timeout = sec(after) }
}

func clients(count int, think float64) option {
	return func(s *sim.Scenario) { s.Clients = sim.Clients{Count: count, Think: sec(think)} }
}

func tuningCore() []sim.Scenario {
	recovery := []sim.Change{{At: 20 * time.Second, Speed: 0.1}}
	for i := range 51 {
		recovery = append(recovery, sim.Change{At: sec(30 + float64(i)*0.4), Speed: 0.1 + 0.9*float64(i)/50})
	}
	return []sim.Scenario{
		scenario("2x", step(.5, 2, 20)),
		scenario("10x", step(.5, 10, 20), span(45, 20, 45)),
		scenario("1.1x", step(.5, 1.1, 20)),
		scenario("0.9x", load(.9)),
		scenario("shared CPU, contention .5, 2x", step(.5, 2, 20), sharing, linear(.5)),
		scenario("shared CPU, contention 1 ^1.5, 2x", step(.5, 2, 20), sharing, power(1, 1.5, 1)),
		scenario("convoy .4, 2x", step(.5, 2, 20), convoy(.4)),
		scenario("cliff at 2 a worker, 2x", step(.5, 2, 20), sharing, power(4, 1, 2)),
		scenario("3 retries, 1.3x", step(.5, 1.3, 20), retries(3, .1, 1)),
		scenario("SYNs dropped, 1.5x", step(.5, 1.5, 20), drop),
		scenario("500 clients, think 200 ms", clients(500, .2)),
		scenario("log-normal 1.5, 2x", step(.5, 2, 20), distribution("lognormal", 1.5)),
		scenario("1 % at 100x, 2x", server(16, .01), rate(800), step(.5, 2, 20), rate(800), classes(.99, 1, .01, 100)),
		scenario("cheap to dear", rate(640), classes(1, 1, 0, 5), changes(sim.Change{At: sec(30), Shares: []float64{.5, .5}}), span(60, 30, 60)),
		scenario("flash x20", flash(.3, 6, 20, 40), span(60, 20, 45)),
		scenario("on 3x, off .1x, 2 s each", repeat(4, 2, 3, .1)),
		scenario("stalls 200 ms every 5 s, .7x", load(.7), stalls(5, .2)),
		scenario("10 times slower for 10 s, 2x", load(2), slow(10, 20, 30), span(60, 30, 40)),
		scenario("gradual recovery, .8x", load(.8), changes(recovery...)),
		scenario("workers doubled, 2x", load(2), changes(sim.Change{At: sec(20), Workers: 32}), span(40, 20, 40)),
		scenario("workers halved, .8x", load(.8), changes(sim.Change{At: sec(20), Workers: 8})),
		scenario("service x3 for good, 1x", load(1), longer(3, 20), span(90, 20, 90)),
		scenario("1 worker cold, 3x", server(1, .02), load(3), span(20, 0, 10)),
		scenario("1 worker at 5/s, 3x", server(1, .2), step(.5, 3, 60), span(180, 60, 180)),
		scenario("400 workers cold, .8x", server(400, .1), load(.8), span(20, 0, 5)),
		scenario("5 s service, 2x", server(16, 5), step(.5, 2, 60), span(360, 60, 300)),
		scenario("50 us, 1 worker, 2x", server(1, 5e-5), step(.5, 2, 2), span(8, 2, 8)),
		scenario(".5/s, then 150/s", server(1, .02), rate(1), profile(false, 0, .5, 200, 150), rate(1), span(230, 200, 230)),
	}
}

func tuningMore() []sim.Scenario {
	diurnal := []float64{}
	for t := 0.0; t <= 120; t += 2 {
		diurnal = append(diurnal, t, .85-.65*math.Cos(2*math.Pi*t/120))
	}
	return []sim.Scenario{
		scenario("4 workers, log-normal 1, 3x", server(4, .02), step(.5, 3, 20), distribution("lognormal", 1)),
		scenario("64 workers, 1.5x", server(64, .05), step(.5, 1.5, 20)),
		scenario("2 workers, constant, 5x", server(2, .01), step(.4, 5, 20), distribution("constant", 0)),
		scenario("64 workers, .95x", server(64, .05), load(.95)),
		scenario("64 shared, contention .3, 3x", server(64, .1), step(.5, 3, 20), sharing, linear(.3)),
		scenario("8 shared, contention 2, 1.5x", server(8, .02), step(.5, 1.5, 20), sharing, linear(2)),
		scenario("4 workers, convoy .8, 2x", server(4, .01), step(.5, 2, 20), convoy(.8)),
		scenario("32 shared, cliff at 1.5, 4x", server(32, .05), step(.5, 4, 20), sharing, power(6, 1, 1.5)),
		scenario("shared, log-normal 1.5, 3x", step(.5, 3, 20), sharing, distribution("lognormal", 1.5)),
		scenario("64 workers, 2 retries doubling, 1.5x", server(64, .05), step(.5, 1.5, 20), retries(2, .2, 2)),
		scenario("4 workers, SYNs dropped, 3x", server(4, .02), step(.5, 3, 20), drop),
		scenario("timeouts and retries, 1.2x", step(.5, 1.2, 20), timeout(.2), retries(2, .3, 1)),
		scenario("4 workers, 50 clients", server(4, .02), clients(50, .02)),
		scenario("2000 clients, think 1 s", clients(2000, 1)),
		scenario("8 workers, 200 clients without think", server(8, .02), clients(200, 0), span(40, 10, 40)),
		scenario("open and closed", step(.3, .8, 20), clients(300, .3)),
		scenario("8 workers, Pareto, 2x", server(8, .02), step(.5, 2, 20), distribution("pareto", 1.5)),
		scenario("5 % at 20x, shared, 2x", server(16, .01), step(.5, 2, 20), rate(820), sharing, classes(.95, 1, .05, 20)),
		scenario("dear to cheap", rate(640), classes(.5, 1, .5, 5), changes(sim.Change{At: sec(30), Shares: []float64{1, 0}}), span(60, 30, 60)),
		scenario("diurnal", profile(true, diurnal...), span(120, 0, 120)),
		scenario("64 workers, flash x20", server(64, .05), flash(.2, 4, 20, 35), span(45, 20, 40)),
		scenario("4 workers, on 2x, off 0", server(4, .02), repeat(4, 2, 2, 0)),
		scenario("64 workers, stalls 100 ms every 2 s", server(64, .05), load(.6), stalls(2, .1)),
		scenario("4 workers, 5 times slower for 5 s, 1.5x", server(4, .02), load(1.5), slow(5, 20, 25), span(60, 25, 35)),
		scenario("64 workers, 10 times slower for 10 s, .7x", server(64, .05), load(.7), slow(10, 20, 30), span(60, 30, 40)),
		scenario("8 to 32 workers, 3x", server(8, .02), load(3), changes(sim.Change{At: sec(20), Workers: 32}), span(40, 20, 40)),
		scenario("8 to 4 workers, 1 ms", server(8, .001), load(.8), changes(sim.Change{At: sec(10), Workers: 4}), span(30, 10, 30)),
		scenario("200 workers, service x3, .25x", server(200, .05), load(.25), longer(3, 20)),
		scenario("2 workers cold, 5x", server(2, .05), load(5), span(20, 0, 10)),
		scenario("1 worker at .5 s, 2x", server(1, .5), step(.5, 2, 100), span(400, 100, 400)),
		scenario("2000 workers cold, .8x", server(2000, .5), load(.8), span(20, 0, 10)),
		scenario("400 workers cold, 2x", server(400, .1), load(2), span(15, 0, 15)),
		scenario("4 workers at 5 s, 3x", server(4, 5), step(.4, 3, 100), span(500, 100, 400)),
		scenario("64 workers at .5 s, 2x", server(64, .5), step(.5, 2, 30), span(120, 30, 110)),
		scenario("3/s, then 15/s", server(1, .1), rate(1), profile(false, 0, 3, 100, 15), rate(1), span(200, 100, 200)),
		scenario("4 workers, 15 min at 2x", server(4, .02), step(.5, 2, 20), span(920, 820, 920)),
	}
}
