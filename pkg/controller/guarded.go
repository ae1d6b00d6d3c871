package controller

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Constants of the algorithm that no one has to set. docs/design/guarded.md
// says what each is for.
const (
	windowSamples = 10   // a window has so many samples, or lasts a second
	calmSpans     = 5    // spans without a refusal that bring the burst back
	burstTime     = 0.45 // s that more than the limit may be in flight in a burst
	queueing      = 0.7  // baseline over round trip below which a queue stands
	deepQueue     = 0.5  // and below which it is deep; also the least factor on the limit
	noQueue       = 0.8  // and from which on it is gone
	longUnits     = 3    // baselines that a unit takes of a target that seems slow
	lessDone      = 0.65 // of what was done with twice as much in flight: no queue's doing
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
	former   float64 // the limit when the last queue was first seen, units
	starting bool    // no queue was seen yet: grow as fast as completions allow
	queued   bool    // one was seen, and the limit is not back at former since
	calm     bool    // the burst allowance is in force
	timed    bool    // the kernel times the units of probes
	watching bool    // no limit of ours is in force: no experiment would tell anything
	floored  bool    // at Min, and a queue stands all the same
	pressed  int     // windows of pressure in a row
	moved    int     // the limit at the last decision, without dither and burst
	why      Reason  // what moved the limit last, or ended a probe

	dithered bool // the limit is moved in this window, by dither
	dither   dither

	refusedAt float64 // s; when something was refused last
	movedAt   float64 // s; when a unit finished last, or could have come in
	withinAt  float64 // s; when no more than the limit was in flight last
	window    window
	fall      fall
	probe     probe
	decision  Decision
}

// fall is a window under pressure, for comparison with one in which half as much
// is in flight.
type fall struct {
	inFlight int
	rate     float64 // completions a second; 0: there is none
	slow     bool    // the last comparison says that the target is slow, not queued at
}

// dither is what was learned from moving the limit since the last four windows.
type dither struct {
	quad   int     // place in dithering
	gained float64 // sum of the log rates of the larger windows less the smaller
	moved  float64 // the same of the limits that were in force
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
		g.movedAt = now
		g.beginProbe(now, g.limit, math.Inf(1))
		return g.decision
	}
	g.gather(now, t)
	if g.stuck(now, t) {
		return g.decision
	}
	switch {
	case g.probe.open:
		if g.probeOver(now, t.Cohort) {
			g.endProbe(now, t.Cohort)
		}
	case !g.windowOver(now):
	case g.window.samples == 0:
		g.openWindow(now)
		g.enforce(now)
	default:
		g.step(now)
	}
	return g.decision
}

func (g *Guarded) gather(now float64, t Tick) {
	w := &g.window
	w.samples += float64(t.Samples)
	w.sum += t.Sum.Seconds()
	w.inFlight = max(w.inFlight, t.MaxInFlight)
	g.watching = t.Observing
	g.timed = g.timed || t.Cohort.Epoch == g.decision.CohortEpoch

	if t.MaxInFlight <= g.decision.AfterRefusal {
		g.withinAt = now
	}
	spent := g.calm && now-g.withinAt > burstTime
	if t.Refused > 0 || spent {
		g.refusedAt = now
		g.calm = false
		g.decide(g.decision.AfterRefusal, g.decision.AfterRefusal, ReasonRefusal)
	}
}

// decide sets the limit, and the reason where that changes it.
func (g *Guarded) decide(limit, afterRefusal int, why Reason) {
	if limit != g.decision.Limit {
		g.decision.Reason = why
	}
	g.decision.Limit, g.decision.AfterRefusal = limit, afterRefusal
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
func (g *Guarded) step(now float64) {
	w, span := g.window, g.span()
	length := now - w.begun
	r, x := max(w.sum/w.samples, 1e-9), w.samples/length

	full := float64(w.inFlight) >= 0.9*min(g.limit, float64(g.decision.Limit))
	press := full || now-g.refusedAt < calmSpans*span
	trust := min(1, w.samples/windowSamples)

	g.smooth(r, x, w.samples, length)
	g.learnBaseline(r, press, trust)
	g.learnFall(w, r, x, press)
	g.learnHeadroom(x, w.samples)
	g.move(use{full: full, press: press, busy: float64(w.inFlight) >= g.limit/2}, max(x, g.rate), trust)

	queue := g.baseline/g.rtt < queueing
	g.floored = press && queue && g.limit <= float64(g.p.Min)
	g.pressed++
	if !press {
		g.pressed = 0
	}
	g.openWindow(now)
	g.enforce(now)
	if g.probeDue(now, press && queue, float64(w.inFlight) <= 1.1*float64(g.decision.Limit)+1) {
		depth, of := 0.75, min(g.limit, g.rate*g.baseline)
		if g.probe.doubt {
			depth = 0.5
		}
		if g.slow() { // the baseline says nothing about it
			depth, of = 0.5, g.limit
		}
		g.beginProbe(now, depth*of, now+1+6*g.rtt)
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
	a := min(1, samples/windowSamples)
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
		g.probe.doubt = true // there may be a queue in it
		g.probe.gap = g.p.ProbeMin.Seconds()
	}
}

// learnFall looks for what no queue explains: half as much in flight, and half as
// much done. Where units wait for one another as much is done as before. It is a
// target that has become slow, and the limit falls for nothing; a probe has to
// confirm it.
func (g *Guarded) learnFall(w window, r, x float64, press bool) {
	f := &g.fall
	switch {
	case !press:
		*f = fall{}
	case w.samples < windowSamples/2:
	case f.rate == 0 || w.inFlight > f.inFlight:
		*f = fall{inFlight: w.inFlight, rate: x, slow: f.slow}
	case 2*w.inFlight <= f.inFlight:
		*f = fall{inFlight: w.inFlight, rate: x, slow: r > longUnits*g.baseline && x < lessDone*f.rate}
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
	if g.calm {
		g.headroom += 0.02 * (1 - g.headroom)
	}
	if !g.dithered {
		g.dither = dither{}
		return
	}
	d := &g.dither
	d.gained += dithering[d.quad] * math.Log(x)
	d.moved += dithering[d.quad] * math.Log(float64(g.decision.Limit))
	if d.quad++; d.quad < len(dithering) {
		return
	}
	if d.moved > 0 {
		slope := min(max(d.gained/d.moved, -2), 2) // of ln(rate) by ln(limit)
		weight := min(1, samples/40) * min(2, d.moved/(4*g.p.Dither))
		g.headroom = min(max(g.headroom*math.Exp(0.25*weight*(slope+0.2)), minHeadroom), 1)
	}
	*d = dither{}
}

// ditherBy is how far the limit is moved, in units: half a unit at least, so
// that it is another whole number, and less where little headroom is left,
// since there a larger limit is known to do harm.
func (g *Guarded) ditherBy() float64 {
	return max(g.p.Dither*math.Sqrt(g.headroom)*g.limit, 0.5) * dithering[g.dither.quad]
}

// use is how a window used the limit.
type use struct {
	busy  bool // half of it was in flight
	full  bool // nearly all of it
	press bool // full, or something was refused not long ago
}

// move sets the limit to baseline over round trip of it, plus growth, half the
// way each window and less where headroom is small: there the round trip
// answers to the limit so strongly that full steps would swing.
func (g *Guarded) move(u use, x, trust float64) {
	share := g.baseline / g.rtt
	if share < queueing && !g.queued {
		g.queued, g.former = true, g.limit
	}
	if g.starting && (share < queueing || !u.full) {
		g.starting = false
	}
	if g.starting {
		g.limit = g.bound(g.limit + x*g.baseline)
		g.why = ReasonStart
		return
	}
	step := 0.5 * g.headroom * (g.limit*min(max(share, deepQueue), 1) + g.growth() - g.limit)
	switch {
	case step > 0 && u.busy:
		g.why = ReasonGrowth
		g.limit += trust * step
	case step < 0 && (u.press || u.busy && share < deepQueue):
		// A few samples say enough where the queue is far longer than chance.
		g.why = ReasonGradient
		g.limit += min(1, max(trust, trust/share)) * step
	}
	if g.queued && share >= noQueue && !u.press {
		// Back to where it was before a queue that is gone: a stall says
		// nothing about what the target carries.
		if g.former > g.limit {
			g.why = ReasonRecovery
		}
		g.limit += 0.5 * max(0, g.former-g.limit)
		g.queued = g.former >= 1.05*g.limit
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
	g.calm = g.rtt > 0 && now-g.refusedAt > calmSpans*g.span()
	g.dithered = !g.calm && !g.watching && g.pressed > 0 && g.p.Dither > 0
	limit, why := g.limit, g.why
	if g.dithered {
		limit += g.ditherBy()
		if whole(g.limit) == g.moved {
			why = ReasonDither
		}
	}
	step := whole(g.limit) - g.moved
	g.moved = whole(g.limit)
	afterRefusal := whole(g.bound(limit))
	if g.calm {
		limit += g.p.Burst * g.peak * g.baseline
		// It may go the other way than the limit itself: the larger step says why.
		was, is := g.decision.Limit-g.decision.AfterRefusal, whole(g.bound(limit))-afterRefusal
		if max(is-was, was-is) >= max(step, -step) {
			why = ReasonBurst
		}
	}
	g.decide(whole(g.bound(limit)), afterRefusal, why)
}

func whole(limit float64) int { return int(math.Round(limit)) }

// stuckFor is how long nothing has finished, at a full limit and with units
// refused, before one more is let in.
const stuckFor = 1.0 // s

// stuck lets in one unit more in each second in which the limit is full, units
// are refused and none finishes. What is inside may be long polls, streams or
// clients that have yet to ask: then nothing would ever be measured, and nobody
// let in again. If it is a target that hangs, one more a second does little.
func (g *Guarded) stuck(now float64, t Tick) bool {
	if t.Samples > 0 || t.Refused == 0 || t.MaxInFlight < g.decision.Limit {
		g.movedAt = now
	}
	if now-g.movedAt < stuckFor {
		return false
	}
	g.movedAt = now
	g.limit = g.bound(math.Floor(g.limit) + 1)
	if g.probe.open && g.baseline > 0 {
		return false // it gives up by itself
	}
	g.decide(int(g.limit), int(g.limit), ReasonStuck)
	return true
}

// Floored says that the limit is at its minimum and a queue stands all the
// same: the minimum is more than the target carries, or the target is slow for
// a reason that no limit mends.
func (g *Guarded) Floored() bool { return g.floored }

// Baseline returns the time of a unit when none waits, and 0 before it was
// first measured.
func (g *Guarded) Baseline() time.Duration { return time.Duration(g.baseline * 1e9) }
