package controller

import "math"

// probe measures the baseline while the limit is under pressure: the first
// few units that are admitted at a reduced limit, and none that was admitted
// before it.
type probe struct {
	open    bool
	size    int
	begun   float64 // s
	end     float64 // s; when it is given up
	count   int     // probes ended, without the one at the start
	endedAt float64 // s; when the last one ended
	gap     float64 // s; how long the next one waits
	doubt   bool    // the last one moved the baseline by half or more
}

func (g *Guarded) beginProbe(now float64, size int, limit, end float64) {
	g.probe.open, g.probe.size, g.probe.begun, g.probe.end = true, size, now, end
	g.calm = false
	g.decision.Limit = max(int(math.Round(min(limit, float64(g.p.Max)))), 1)
	g.decision.AfterRefusal = g.decision.Limit
	g.decision.CohortEpoch++
	g.decision.CohortSize = size
}

// probeDue says whether a probe begins: after ten windows of pressure, or at
// the first queue ever seen, since the first baseline may have had it in it.
func (g *Guarded) probeDue(now float64, queue bool) bool {
	if g.starting {
		return false
	}
	return queue && g.probe.count == 0 ||
		g.pressed >= probePressed && now-g.probe.endedAt > g.probe.gap
}

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
	if float64(units.Done) >= probeDone*float64(p.size) || now >= p.end {
		return true
	}
	// What was in flight when it began has had the time to finish twice over
	// and still leaves no room: it is idle, and no probe gets past it.
	if g.baseline > 0 && units.Admitted == 0 && now-p.begun > 2*(g.rtt+g.p.Window.Seconds()) {
		return true
	}
	return g.baseline == 0 && g.window.samples >= startSamples
}

// endProbe takes over what was measured. The ages of the unfinished count
// too: the units that finish first are the short ones.
func (g *Guarded) endProbe(now float64, t Cohort) {
	p, c := &g.probe, g.cohort(t)
	done := float64(c.Done)
	g.quad, g.evidence = 0, 0
	p.open = false
	g.decision.CohortSize = 0

	if g.baseline == 0 {
		mean := g.window.sum / max(g.window.samples, 1)
		if done >= probeDone*float64(p.size) {
			mean = (c.Sum + c.Ages).Seconds() / done
		}
		g.setBaseline(mean)
		g.rtt = g.baseline
		return
	}
	p.count++
	p.endedAt = now
	if done == 0 {
		p.doubt = false
		p.gap = g.nextGap(now - p.begun)
		return
	}
	mean := min(max((c.Sum+c.Ages).Seconds()/done, 1e-9), 4*g.baseline)
	lower := mean < g.baseline/1.5
	p.doubt = lower || mean > 1.5*g.baseline
	weight := min(1, done/(probeDone*float64(p.size)))
	if !p.doubt {
		weight *= 0.5
	}
	g.setBaseline(g.baseline + weight*(mean-g.baseline))
	if lower {
		g.limit = g.bound(min(g.limit, g.rate*g.baseline+g.growth()))
	}
	p.gap = g.nextGap(now-p.begun) * (0.95 + 0.1*g.uniform())
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
