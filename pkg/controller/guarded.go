package controller

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Constants of the algorithm that no one has to set. docs/design/guarded.md
// says where each comes from.
const (
	windowSamples = 10  // a window has so many samples, or lasts a second
	smoothSamples = 25  // samples that replace the smoothed means at once
	startSize     = 10  // units of the first probe
	startSamples  = 200 // samples that stand in for a first probe that hangs
	probeSize     = 20  // units of every other probe
	probeDone     = 0.9 // share of them that must be done
	probePressed  = 10  // windows of pressure before a probe
	probeSpacing  = 10  // a probe may take a tenth of the time
	calmSpans     = 5   // spans without a refusal that bring the burst back
	queueing      = 0.7 // baseline over round trip that says a queue stands
	burstShare    = 0.4 // baseline over round trip that allows a burst
	minHeadroom   = 0.1
	minGrowth     = 2 // units a window, at full headroom
)

// dithering is the order of the larger and smaller windows. A trend that is
// linear over the four cancels out.
var dithering = [4]float64{+1, -1, -1, +1}

// Guarded is the default algorithm. It grows the limit by what the target
// carries (Little's law: completions a second times the baseline), shrinks it
// by the ratio of baseline to round trip, and guards the baseline: under
// pressure only a probe, a few units admitted at a reduced limit, may raise
// it. An overload therefore is never learned as normal, and a real shift is.
type Guarded struct {
	p   GuardedParams
	rng rand.PCG

	limit    float64 // units, before burst and dither
	baseline float64 // s, time of a unit when none waits; 0 until measured
	rtt      float64 // s, smoothed mean time of a unit
	rate     float64 // completions a second, smoothed
	peak     float64 // the largest rate, forgotten at 1 % a second
	headroom float64 // growth a window, as a share of what is carried
	starting bool    // no queue was seen yet: grow as fast as completions allow
	calm     bool    // the burst allowance is in force
	floored  bool    // at Min, and a queue stands all the same
	pressed  int     // windows of pressure in a row

	quad     int     // place in dithering
	evidence float64 // sum of the log rates of the larger windows less the smaller

	refusedAt float64 // s; when something was refused last
	window    window
	probe     probe
	decision  Decision
}

// window gathers ticks until they make a measurement.
type window struct {
	begun    float64 // s
	samples  float64
	sum      float64 // s
	inFlight int     // the most at one moment
}

// NewGuarded returns the algorithm, or what is wrong with its settings.
func NewGuarded(p GuardedParams) (*Guarded, error) {
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("guarded: %w", err)
	}
	return &Guarded{
		p:         p,
		rng:       *rand.NewPCG(p.Seed, 0),
		limit:     float64(p.Initial),
		headroom:  1,
		starting:  true,
		refusedAt: math.Inf(-1),
		probe:     probe{doubt: true, gap: p.ProbeMin.Seconds(), endedAt: math.Inf(-1)},
	}, nil
}

// Decide implements [Algorithm].
func (g *Guarded) Decide(t Tick) Decision {
	now := t.Now.Seconds()
	if g.decision.Limit == 0 { // the first tick: what it holds, no limit of ours shaped
		g.openWindow(now)
		g.beginProbe(now, startSize, g.limit, math.Inf(1))
		return g.decision
	}
	g.gather(now, t)
	switch {
	case g.probe.open:
		if g.probeOver(now, t.Cohort) {
			g.endProbe(now, t.Cohort)
			g.openWindow(now)
			g.enforce(now)
		}
	case !g.windowOver(now):
		if t.Refused > 0 {
			g.decision.Limit = g.decision.AfterRefusal
		}
	case g.window.samples == 0:
		g.openWindow(now)
		g.enforce(now)
	default:
		g.step(now, t.Observing)
	}
	return g.decision
}

func (g *Guarded) gather(now float64, t Tick) {
	w := &g.window
	w.samples += float64(t.Samples)
	w.sum += t.Sum.Seconds()
	w.inFlight = max(w.inFlight, t.MaxInFlight)
	if t.Refused > 0 {
		g.refusedAt = now
		g.calm = false
	}
}

func (g *Guarded) openWindow(now float64) { g.window = window{begun: now} }

// span is the least length of a window, in seconds. It holds one round trip:
// a shorter one would act twice on the same queue.
func (g *Guarded) span() float64 {
	return max(g.p.Window.Seconds(), min(g.rtt, 2*g.baseline))
}

func (g *Guarded) windowOver(now float64) bool {
	length, span := now-g.window.begun, g.span()
	const early = 0.95 // a tick that comes a little early still ends it
	if length < early*span {
		return false
	}
	return g.window.samples >= windowSamples || length >= early*max(1, 2*span)
}

// step takes in the window that is over, decides, and opens the next one.
// An experiment (a probe, a dither) needs a limit that is in force.
func (g *Guarded) step(now float64, observing bool) {
	w, span := g.window, g.span()
	length := now - w.begun
	r, x := max(w.sum/w.samples, 1e-9), w.samples/length

	full := float64(w.inFlight) >= 0.9*min(g.limit, float64(g.decision.Limit))
	press := full || now-g.refusedAt < calmSpans*span
	trust := min(1, w.samples/windowSamples)

	g.smooth(r, x, w.samples, length)
	g.learnBaseline(r, press, trust)
	if !observing {
		g.learnHeadroom(x, w.samples)
	}
	g.move(max(x, g.rate), full, float64(w.inFlight) >= g.limit/2, trust)

	queue := g.baseline/g.rtt < queueing
	g.floored = press && queue && g.limit <= float64(g.p.Min)
	g.pressed++
	if !press {
		g.pressed = 0
	}
	g.openWindow(now)
	g.enforce(now)
	if !observing && g.probeDue(now, press && queue) {
		depth := 0.75
		if g.probe.doubt {
			depth = 0.5
		}
		limit := max(float64(g.p.ProbeFloor), depth*min(g.limit, g.rate*g.baseline))
		g.beginProbe(now, probeSize, limit, now+1+6*g.rtt)
	}
}

func (g *Guarded) smooth(r, x, samples, length float64) {
	if g.rate == 0 {
		g.rate = x
	}
	g.peak *= max(0, 1-0.01*min(length, 10))
	if samples >= windowSamples {
		g.peak = max(g.peak, x)
	}
	a := min(1, samples/smoothSamples)
	g.rtt += a * (r - g.rtt)
	g.rate += a * (x - g.rate)
}

// learnBaseline follows the round trip while nothing presses. Under pressure
// the round trip has a queue in it, and only a fall to half is believed.
func (g *Guarded) learnBaseline(r float64, press bool, trust float64) {
	switch {
	case !press:
		g.setBaseline(g.baseline + 0.02*trust*(r-g.baseline))
	case r < g.baseline/2:
		g.setBaseline(g.baseline + 0.3*trust*(r-g.baseline))
	}
}

func (g *Guarded) setBaseline(b float64) {
	g.baseline = max(b, 1e-9)
	if limit := g.p.MaxBaseline.Seconds(); limit > 0 {
		g.baseline = min(g.baseline, limit)
	}
}

// learnHeadroom compares the completions of larger and smaller windows. Where
// a larger limit does not complete more, contention eats what it admits, and
// the headroom shrinks; 0.2 is what speaks for growth when nothing is seen.
func (g *Guarded) learnHeadroom(x, samples float64) {
	if g.calm || g.p.Dither == 0 {
		g.headroom += 0.02 * (1 - g.headroom)
		g.quad, g.evidence = 0, 0
		return
	}
	g.evidence += dithering[g.quad] * math.Log(x)
	if g.quad++; g.quad < len(dithering) {
		return
	}
	slope := min(max(g.evidence/(4*g.p.Dither), -2), 2) // of ln(rate) by ln(limit)
	weight := min(1, samples/40)
	g.headroom = min(max(g.headroom*math.Exp(0.15*weight*(slope+0.2)), minHeadroom), 1)
	g.quad, g.evidence = 0, 0
}

func (g *Guarded) move(x float64, full, busy bool, trust float64) {
	share := g.baseline / g.rtt
	if g.starting && (share < queueing || !full) {
		g.starting = false
	}
	if g.starting {
		g.limit += x * g.baseline
	} else {
		target := g.limit*min(max(share, 0.5), 1) + g.growth()
		if target < g.limit || busy {
			g.limit += 0.5 * trust * (target - g.limit)
		}
	}
	g.limit = g.bound(g.limit)
}

// growth is what a window adds to the limit: by Little's law the units that
// the target carries without a queue, or a share of them.
func (g *Guarded) growth() float64 { return g.headroom * max(minGrowth, g.rate*g.baseline) }

func (g *Guarded) bound(limit float64) float64 {
	return min(max(limit, float64(g.p.Min)), float64(g.p.Max))
}

// enforce sets the decision for the window that begins.
func (g *Guarded) enforce(now float64) {
	g.calm = g.rtt > 0 && now-g.refusedAt > calmSpans*g.span() && g.baseline/g.rtt >= burstShare
	limit, after := g.limit, g.limit
	if g.calm {
		limit += g.p.Burst * g.peak * g.baseline
	} else {
		limit *= 1 + g.p.Dither*dithering[g.quad]
		after = limit
	}
	g.decision.Limit = int(math.Round(g.bound(limit)))
	g.decision.AfterRefusal = int(math.Round(g.bound(after)))
}

// Floored says that the limit is at its minimum and a queue stands all the
// same: the minimum is more than the target carries, or the target is slow for
// a reason that no limit mends.
func (g *Guarded) Floored() bool { return g.floored }

// Baseline returns the time of a unit when none waits, and 0 before it was
// first measured.
func (g *Guarded) Baseline() time.Duration { return time.Duration(g.baseline * 1e9) }
