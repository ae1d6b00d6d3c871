package scenarios

import (
	"fmt"
	"math"
	"math/rand/v2"

	"headgate/pkg/sim"
)

// ReportSeed draws the scenarios that scores are reported on. Nothing was
// tuned on them.
const ReportSeed = 48_2026

// Families are the kinds of drawn scenarios, in the order in which they are
// dealt.
var Families = []string{"plain", "contention", "retries", "closed", "tails", "varying", "cold", "slow"}

// Drawn is a scenario drawn at random, and the family it is of.
type Drawn struct {
	Family string
	sim.Scenario
}

// Draw returns n scenarios, the families in turn: 1 to 100 workers and a
// service time of 2 ms to 5 s, both even in the logarithm, at most 5000 units
// a second.
func Draw(seed uint64, n int) []Drawn {
	d := dice{rand.New(rand.NewPCG(seed, 0))}
	var all []Drawn
	for i := range n {
		family := Families[i%len(Families)]
		s := d.draw(family)
		s.Name = fmt.Sprintf("%s %d: %s", family, i/len(Families)+1, s.Name)
		all = append(all, Drawn{family, s})
	}
	return all
}

type dice struct{ *rand.Rand }

// between is even in the logarithm.
func (d dice) between(lo, hi float64) float64 { return lo * math.Exp(d.Float64()*math.Log(hi/lo)) }

func (d dice) even(lo, hi float64) float64 { return lo + d.Float64()*(hi-lo) }

func (d dice) coin(p float64) bool { return d.Float64() < p }

func (d dice) draw(family string) sim.Scenario {
	c, svc := 0, 0.0
	for lo, hi := 0.002, 0.2; svc == 0 || float64(c)/svc > 5000; {
		if family == "slow" {
			lo, hi = 0.2, 5
		}
		c, svc = int(math.Round(d.between(1, 100))), round(d.between(lo, hi))
	}
	calm := max(20, 60*svc) // so long before the overload
	busy := max(40, 60*svc)
	s := scenario(fmt.Sprintf("%d workers at %.3g s", c, svc),
		server(c, svc), span(calm+busy, calm, calm+busy))
	add := func(words string, options ...option) {
		s.Name += ", " + words
		for _, o := range options {
			o(&s)
		}
	}
	over := func(x float64) {
		add(fmt.Sprintf("%.2fx", x), step(d.even(.3, .7), x, calm))
	}
	if d.coin(.3) {
		add("shared", sharing)
	}
	switch family {
	case "plain":
		d.anyDistribution(add)
		over(d.between(.8, 10))
	case "contention":
		switch a := d.between(.3, 5); d.IntN(4) {
		case 0:
			add(fmt.Sprintf("contention %.2f", a), linear(a))
		case 1:
			add(fmt.Sprintf("contention %.2f ^1.5", a), power(a, 1.5, 1))
		case 2:
			add(fmt.Sprintf("convoy %.2f", a), convoy(a))
		default:
			from := d.even(1.2, 3)
			add(fmt.Sprintf("cliff %.2f at %.2f", 2*a, from), power(2*a, 1, from))
		}
		over(d.between(1.1, 5))
	case "retries":
		switch n := 1 + d.IntN(3); d.IntN(3) {
		case 0:
			add(fmt.Sprintf("%d retries", n), retries(n, d.between(.05, 1), 1))
		case 1:
			add(fmt.Sprintf("%d retries doubling", n), retries(n, d.between(.05, .5), 2))
		default:
			add("SYNs dropped", drop)
		}
		over(d.between(1.05, 3))
	case "closed":
		think := d.between(.01, 2)
		n := int(math.Ceil(d.between(1.2, 10) * float64(c) * (1 + think/svc)))
		add(fmt.Sprintf("%d clients, think %.2g s", min(n, 5000), think), clients(min(n, 5000), think))
	case "tails":
		switch d.IntN(3) {
		case 0:
			sigma := d.even(1, 1.8)
			add(fmt.Sprintf("log-normal %.2f", sigma), distribution("lognormal", sigma))
		case 1:
			alpha := d.even(1.3, 2.5)
			add(fmt.Sprintf("Pareto %.2f", alpha), distribution("pareto", alpha))
		default:
			share, times := d.between(.005, .1), d.between(10, 100)
			add(fmt.Sprintf("%.1f %% at %.0fx", 100*share, times), classes(1-share, 1, share, times))
		}
		over(d.between(.8, 4))
	case "varying":
		d.varying(add, calm)
	case "cold":
		s.Duration, s.From, s.To = sec(busy), 0, sec(max(10, 15*svc))
		x := d.between(.6, 5)
		add(fmt.Sprintf("cold, %.2fx", x), load(x))
	case "slow":
		d.anyDistribution(add)
		over(d.between(1.1, 5))
	}
	return s
}

func (d dice) anyDistribution(add func(string, ...option)) {
	switch d.IntN(3) {
	case 0:
		add("constant", distribution("constant", 0))
	case 1:
		add("log-normal 1", distribution("lognormal", 1))
	}
}

func (d dice) varying(add func(string, ...option), calm float64) {
	x := d.between(.7, 3)
	words := fmt.Sprintf("%.2fx, ", x)
	switch d.IntN(6) {
	case 0:
		by := d.between(2, 10)
		add(words+fmt.Sprintf("%.1f times slower for 10 s", by), load(x), slow(by, calm, calm+10))
	case 1:
		by := d.between(.3, 4)
		add(words+fmt.Sprintf("workers x%.2f", by), load(x), func(s *sim.Scenario) {
			n := max(1, int(math.Round(by*float64(s.Server.Workers))))
			changes(sim.Change{At: sec(calm), Workers: n})(s)
		})
	case 2:
		by := d.between(1.5, 4)
		add(words+fmt.Sprintf("service x%.2f for good", by), load(x), longer(by, calm))
	case 3:
		every, high := d.between(1, 20), d.between(1.5, 5)
		add(fmt.Sprintf("on %.1fx, off .1x, every %.1f s", high, every), repeat(every, every/2, high, .1))
	case 4:
		high := d.between(2, 8)
		add(fmt.Sprintf("flash to %.1fx", high), flash(d.even(.2, .5), high, calm, calm+20))
	default:
		every, length := d.between(1, 10), d.between(.05, .5)
		x = d.even(.4, .9)
		add(fmt.Sprintf("%.2fx, stalls %.2f s every %.1f s", x, length, every), load(x), stalls(every, length))
	}
}

// round keeps three digits, so that names say what is simulated.
func round(v float64) float64 {
	scale := math.Pow(10, 2-math.Floor(math.Log10(v)))
	return math.Round(v*scale) / scale
}
