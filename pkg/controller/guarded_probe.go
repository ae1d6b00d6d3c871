package controller

import "math"

// Constants of the probe; see docs/design/guarded.md.
const (
	probeSize    = 40  // units of a probe, fewer at a limit below 9
	probeDone    = 0.7 // share of them that must be done
	probePressed = 10  // windows of pressure before a probe
	probeSpacing = 10  // a probe may take a tenth of the time
	startDone    = 7   // units of the first probe that are enough after a second
	startSamples = 200 // samples that stand in for a first probe that hangs
	doubtful     = 1.5 // a probe that moves the baseline by this factor is doubted
	stillQueued  = 1.1 // what a probe carries over its limit, at most, when a queue stood
)

// probe measures the baseline while the limit is under pressure: the first
// few units that are admitted at a reduced limit, and none that was admitted
// before it.
type probe struct {
	open    bool
	limit   float64 // units, a whole number
	size    int     // units to be timed
	begun   float64 // s
	end     float64 // s; when it is given up
	count   int     // probes ended, without the one at the start
	endedAt float64 // s; when the last one ended
	gap     float64 // s; how long the next one waits
	again   bool    // the last one was kept out by what was there, which is worked off
	doubt   bool    // the last one moved the baseline by half or more
}

func (g *Guarded) beginProbe(now, limit, end float64) {
	p := &g.probe
	p.limit = math.Round(min(max(limit, float64(g.p.ProbeFloor)), float64(g.p.Max)))
	p.size = int(min(probeSize, 4+4*p.limit))
	p.open, p.begun, p.end = true, now, end
	g.calm, g.dithered = false, false
	g.decide(int(p.limit), int(p.limit), ReasonProbe)
	g.decision.CohortEpoch++
	g.decision.CohortSize = p.size
}

// probeDue says whether a probe begins: after ten windows of pressure, at the first
// queue ever seen, since the first baseline may have had it in it, or when the target
// seems slow and no more is in flight than the limit, so that none keeps a probe out.
// Where the kernel times no units a probe would cost and tell nothing.
func (g *Guarded) probeDue(now float64, queue, kept bool) bool {
	if g.starting || !g.timed || g.watching {
		return false
	}
	return queue && (g.probe.count == 0 || kept && g.slow()) ||
		g.pressed >= probePressed && now-g.probe.endedAt > g.probe.gap
}

// slow says whether the baseline is suspected to be that of a faster target: by what
// the limit's fall has shown, or since the last probe could not see.
func (g *Guarded) slow() bool { return g.fall.slow || g.probe.again }

// cohort returns c if it is that of the probe in progress, and the empty one
// otherwise: the kernel may not have begun it yet.
func (g *Guarded) cohort(c Cohort) Cohort {
	if c.Epoch != g.decision.CohortEpoch {
		return Cohort{}
	}
	c.Admitted = min(max(c.Admitted, 0), g.probe.size)
	c.Done = min(max(c.Done, 0), c.Admitted)
	return c
}

func (g *Guarded) probeOver(now float64, c Cohort) bool {
	p, units := &g.probe, g.cohort(c)
	if float64(units.Done) >= g.enough() || now >= p.end {
		return true
	}
	if g.baseline > 0 {
		// What was in flight when it began has had the time to finish twice
		// over and still leaves no room: it is idle, and no probe gets past it.
		drained := 2 * (max(g.rtt, g.limit/g.rate) + g.p.Window.Seconds())
		return g.watching || units.Admitted == 0 && now-p.begun > drained
	}
	return g.startOver(now, units)
}

// startOver says whether the first probe, which has no end, is over before it
// is complete: a slow target need not keep its initial limit for long.
func (g *Guarded) startOver(now float64, units Cohort) bool {
	length := now - g.probe.begun
	switch {
	case !g.timed:
		return g.window.samples >= windowSamples && length > 1.5*g.p.Window.Seconds()
	case units.Done >= startDone && length >= 1:
		return true
	default:
		return g.window.samples >= startSamples
	}
}

// enough is how many units of the probe must be done.
func (g *Guarded) enough() float64 { return probeDone * float64(g.probe.size) }

// endProbe takes over what was measured, and opens a window or, where a queue
// may have been in what was measured, the next probe. The ages of the
// unfinished count too: the units that finish first are the short ones.
func (g *Guarded) endProbe(now float64, t Cohort) {
	p, c := &g.probe, g.cohort(t)
	mean := (c.Sum + c.Ages).Seconds() / max(float64(c.Done), 1)
	p.open = false
	g.why = ReasonProbed
	g.decision.CohortSize = 0
	g.dither = dither{}

	next, again := 0.0, false // the limit of a probe that follows at once; one that follows later
	switch {
	case g.baseline == 0:
		if c.Done < startDone && float64(c.Done) < g.enough() {
			mean = g.window.sum / max(g.window.samples, 1)
		}
		g.setBaseline(mean)
		g.rtt = g.baseline
		if g.refusedAt > p.begun && now-p.begun >= 1 {
			// Slow, and too many asked: there may be few workers behind it,
			// and the first units may have waited for one another.
			g.rate = g.window.samples / (now - p.begun)
			next = p.limit / 8
		}
	case c.Done == 0:
		p.ended(now)
		// What was in flight before it kept it out, but was being worked off: once
		// more, when that is gone.
		again = g.window.samples > 0 && !p.again
		p.doubt = false
		p.gap = g.nextGap(now - p.begun)
	default:
		p.ended(now)
		if g.learnProbe(now, mean, min(1, float64(c.Done)/g.enough())) {
			next = p.limit / 2
		}
	}
	g.fall, p.again = fall{}, again
	g.openWindow(now)
	g.enforce(now)
	if next > 0 && g.timed && !g.watching {
		g.beginProbe(now, next, now+1+6*g.rtt)
	}
}

func (p *probe) ended(now float64) {
	p.count++
	p.endedAt = now
}

// learnProbe moves the baseline to the mean time of the probe's units, and
// says whether there was a queue even at its limit: by Little's law the units
// it carried are the rate times their time. A limit below what the target
// works on at once costs rate, so that this is more than the limit; where it
// is not, the limit was still too high to see the service time alone.
func (g *Guarded) learnProbe(now, mean, weight float64) (queued bool) {
	p := &g.probe
	most := 4 * g.baseline
	if g.slow() {
		most = max(most, g.rtt)
	}
	mean = min(max(mean, 1e-9), most)
	lower := mean < g.baseline/doubtful
	p.doubt = lower || mean > doubtful*g.baseline
	if !p.doubt {
		weight *= 0.5
	}
	g.setBaseline(g.baseline + weight*(mean-g.baseline))
	if lower {
		g.why = ReasonLower
		g.limit = g.bound(min(g.limit, max(g.rate*g.baseline, p.limit)+g.growth()))
	}
	p.gap = g.nextGap(now-p.begun) * (0.95 + 0.1*g.uniform())
	return p.limit > float64(g.p.ProbeFloor) && mean*g.rate < stillQueued*p.limit
}

// nextGap keeps a probe to a tenth of the time, and makes it rarer while
// probes confirm the baseline, or tell nothing.
func (g *Guarded) nextGap(length float64) float64 {
	least := max(g.p.ProbeMin.Seconds(), probeSpacing*length)
	if g.probe.doubt {
		return least
	}
	return max(least, min(max(g.p.ProbeMax.Seconds(), probeSpacing*least), 2*g.probe.gap))
}

// uniform returns a number in [0, 1).
func (g *Guarded) uniform() float64 { return float64(g.rng.Uint64()>>11) / (1 << 53) }
