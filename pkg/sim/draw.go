package sim

import (
	"math"
	"math/rand/v2"
	"sort"
)

// source draws what a scenario leaves to chance. Arrivals, work and clients
// have streams of their own, so that two runs that differ only in the limit
// see the same arrivals with the same work.
type source struct {
	arrivals, work, clients *rand.Rand
}

func newSource(seed uint64) source {
	stream := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, n)) }
	return source{arrivals: stream(1), work: stream(2), clients: stream(3)}
}

// service draws a service time with mean 1.
func (s source) service(distribution string, shape float64) float64 {
	switch distribution {
	case "constant":
		return 1
	case "lognormal":
		return math.Exp(shape*s.work.NormFloat64() - shape*shape/2)
	case "pareto":
		const longest = 1e4 // one unit in a million would else block a worker for good
		return min(longest, math.Pow(1-s.work.Float64(), -1/shape)*(shape-1)/shape)
	default:
		return s.work.ExpFloat64()
	}
}

// pick draws an index by weight; the weights add up to 1.
func (s source) pick(weights []float64) int {
	if len(weights) <= 1 {
		return 0
	}
	u := s.work.Float64()
	for i, w := range weights {
		if u < w {
			return i
		}
		u -= w
	}
	return len(weights) - 1
}

// arrivals draws the times of a Poisson process whose rate changes, by
// thinning: candidates at the highest rate, each kept with the probability
// that the rate at its time is of it.
type arrivals struct {
	load  Load
	base  float64 // units a second where the profile is 1
	top   float64 // highest rate of batches
	left  int     // units of the batch that are still to come
	batch float64
}

func newArrivals(l Load, base float64) *arrivals {
	top := 1.0
	if len(l.Profile) > 0 {
		top = 0
		for _, p := range l.Profile {
			top = max(top, p.Times)
		}
	}
	return &arrivals{load: l, base: base, top: top * base / l.Batch, batch: l.Batch}
}

// next returns the first arrival after now, or +Inf.
func (a *arrivals) next(now, end float64, s source) float64 {
	if a.top <= 0 {
		return math.Inf(1)
	}
	if a.left > 0 {
		a.left--
		return now
	}
	for now < end {
		now += s.arrivals.ExpFloat64() / a.top
		if len(a.load.Profile) > 0 && s.arrivals.Float64()*a.top >= a.load.at(now)*a.base/a.batch {
			continue
		}
		if a.batch > 1 { // geometric, at least 1, mean a.batch
			a.left = int(math.Log(1-s.arrivals.Float64()) / math.Log(1-1/a.batch))
		}
		return now
	}
	return math.Inf(1)
}

// at returns the profile's value at t seconds.
func (l Load) at(t float64) float64 {
	p := l.Profile
	if len(p) == 0 {
		return 1
	}
	if l.Repeat > 0 {
		t = math.Mod(t, l.Repeat.Seconds())
	}
	i := sort.Search(len(p), func(i int) bool { return p[i].At.Seconds() > t })
	if i == 0 {
		return p[0].Times
	}
	if i == len(p) || !p[i].Ramp {
		return p[i-1].Times
	}
	from, to := p[i-1], p[i]
	part := (t - from.At.Seconds()) / (to.At - from.At).Seconds()
	return from.Times + part*(to.Times-from.Times)
}
