package sim

import (
	"math"
	"time"

	"headgate/pkg/controller"
	"headgate/pkg/rtt"
)

// gate plays the kernel's part: it counts what is in flight, measures between
// ticks, times the cohort of a probe, and ends a burst allowance at the first
// refusal without waiting for the agent.
type gate struct {
	algorithm controller.Algorithm
	decision  controller.Decision
	limit     int
	inFlight  int

	samples uint64
	sum     float64 // s
	hist    rtt.Histogram
	peak    int
	refused uint64

	cohort  controller.Cohort
	size    int
	done    float64 // s, latencies of the finished
	started float64 // s, admission times of the unfinished, summed

	partitions []partition
}

type partition struct {
	Partition
	inFlight int
	mean     float64 // units in flight, summed over ticks
}

func newGate(a controller.Algorithm, partitions []Partition) *gate {
	g := &gate{algorithm: a}
	for _, p := range partitions {
		g.partitions = append(g.partitions, partition{Partition: p})
	}
	return g
}

// room says whether a unit of partition p may be admitted.
func (g *gate) room(p int) bool {
	if g.inFlight >= g.limit {
		return false
	}
	if len(g.partitions) == 0 {
		return true
	}
	own, reserved := 0, 0 // slots kept for p, and for the others but unused
	for i, q := range g.partitions {
		guaranteed := int(math.Round(q.Share * float64(g.limit)))
		if i == p {
			own = guaranteed
		} else {
			reserved += max(0, guaranteed-q.inFlight)
		}
	}
	return g.partitions[p].inFlight < own || g.inFlight+reserved < g.limit
}

func (g *gate) admit(now float64, j *job) {
	g.inFlight++
	g.peak = max(g.peak, g.inFlight)
	j.admitted = now
	j.epoch = 0
	if g.cohort.Admitted < g.size {
		g.cohort.Admitted++
		g.started += now
		j.epoch = g.cohort.Epoch
	}
	if len(g.partitions) > 0 {
		g.partitions[j.partition].inFlight++
	}
}

func (g *gate) finish(now float64, j *job) {
	g.inFlight--
	d := now - j.admitted
	g.samples++
	g.sum += d
	g.hist.Record(seconds(d))
	if j.epoch != 0 && j.epoch == g.cohort.Epoch {
		g.cohort.Done++
		g.done += d
		g.started -= j.admitted
	}
	if len(g.partitions) > 0 {
		g.partitions[j.partition].inFlight--
	}
}

func (g *gate) refuse() {
	g.refused++
	g.limit = g.decision.AfterRefusal
}

// tick reports to the algorithm and puts its decision in force.
func (g *gate) tick(now float64) {
	c := g.cohort
	c.Sum = seconds(g.done)
	c.Ages = seconds(max(0, float64(c.Admitted-c.Done)*now-g.started))
	if c.Done >= c.Admitted {
		c.Ages = 0
	}
	d := g.algorithm.Decide(controller.Tick{
		Now:         seconds(now),
		Samples:     g.samples,
		Sum:         seconds(g.sum),
		Histogram:   &g.hist,
		MaxInFlight: g.peak,
		Refused:     g.refused,
		Cohort:      c,
	})
	if d.CohortEpoch != g.decision.CohortEpoch {
		g.cohort = controller.Cohort{Epoch: d.CohortEpoch}
		g.size, g.done, g.started = d.CohortSize, 0, 0
	}
	g.decision = d
	g.limit = d.Limit
	g.samples, g.sum, g.refused = 0, 0, 0
	if g.hist.Count > 0 {
		g.hist = rtt.Histogram{}
	}
	g.peak = g.inFlight
	for i := range g.partitions {
		g.partitions[i].mean += float64(g.partitions[i].inFlight)
	}
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }
