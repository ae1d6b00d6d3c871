package scenarios

import (
	"math"
	"slices"
	"time"

	"headgate/pkg/controller"
)

func stuckLatency(t *trial) {
	b := newBench(t.new())
	b.windows(60, 50*time.Millisecond)
	onset := b.limit
	highest := slices.Max(b.windows(600, 5*time.Second))
	t.judge(highest <= onset, "%d at onset, at most %d after", onset, highest)
}

func closedLoop(t *trial) {
	const c, service = 40, 0.02
	b := newBench(t.new())
	var last []int
	for i := range 1200 {
		r := service * math.Max(1, float64(b.limit)/c)
		n := math.Round(float64(b.limit) / r)
		b.tick(controller.Tick{Samples: uint64(n), Sum: time.Duration(n * r * 1e9), MaxInFlight: b.limit, Refused: 1})
		if i >= 1190 {
			last = append(last, b.limit)
		}
	}
	sum := 0
	for _, l := range last {
		sum += l
	}
	mean, most := float64(sum)/float64(len(last)), 2*c+math.Sqrt(2*c)
	t.judge(mean <= most, "%.0f after 20 min, at most %.0f wanted", mean, most)
}

// probeOf brings guarded to its first probe under a standing queue, of units
// that take 20 ms when none waits. It returns the cohort that the probe asked
// for, which the kernel has begun.
func probeOf(t *trial) (*controller.Guarded, *bench, controller.Cohort) {
	g, ok := t.new().(*controller.Guarded)
	if !ok {
		t.moot("no probe that times units")
		return nil, nil, controller.Cohort{}
	}
	b := newBench(g)
	var c controller.Cohort
	for range 200 {
		rtt, known := 20*time.Millisecond, g.Baseline() > 0
		if known {
			rtt = 50 * time.Millisecond
		}
		b.now += 100 * time.Millisecond
		d := b.Decide(controller.Tick{Now: b.now, Samples: 80, Sum: 80 * rtt, MaxInFlight: b.limit, Refused: 5, Cohort: c})
		b.limit = d.Limit
		if d.CohortSize == 0 || d.CohortEpoch == c.Epoch {
			continue
		}
		c = controller.Cohort{Epoch: d.CohortEpoch}
		if known {
			return g, b, c
		}
		c.Admitted, c.Done, c.Sum = d.CohortSize, d.CohortSize, time.Duration(d.CohortSize)*20*time.Millisecond
	}
	t.judge(false, "no probe within 20 s")
	return nil, nil, c
}

func unitsFromBefore(t *trial) {
	g, b, c := probeOf(t)
	if g == nil {
		return
	}
	c.Admitted, c.Done, c.Sum = 20, 20, 400*time.Millisecond
	// 200 units from before the probe report 1 s, its own 20 ms.
	b.now += 100 * time.Millisecond
	b.Decide(controller.Tick{Now: b.now, Samples: 220, Sum: 200*time.Second + 400*time.Millisecond, MaxInFlight: 200, Cohort: c})
	got := g.Baseline()
	t.judge(got > 19*time.Millisecond && got < 21*time.Millisecond, "baseline %v of 20ms", got.Round(100*time.Microsecond))
}

func emptyProbe(t *trial) {
	g, b, c := probeOf(t)
	if g == nil {
		return
	}
	before, limit, low := g.Baseline(), limitOf(g), b.limit
	for i := 0; i < 100; i++ {
		b.now += 100 * time.Millisecond
		b.limit = b.Decide(controller.Tick{Now: b.now, Cohort: c}).Limit
		if b.limit != low {
			break
		}
	}
	restored := limitOf(g)
	for range 10 {
		b.now += 100 * time.Millisecond
		b.Decide(controller.Tick{Now: b.now, Samples: 80, Sum: 80 * 20 * time.Millisecond, MaxInFlight: 200, Refused: 1, Cohort: c})
		if limitOf(g) != limit {
			break
		}
	}
	moved := limitOf(g)
	t.judge(g.Baseline() == before && restored == limit && moved != limit,
		"baseline %v before and %v after, limit %.0f and %.0f, then %.0f", before, g.Baseline(), limit, restored, moved)
}

func longConnections(t *trial) {
	a := t.new(initial(20))
	b := newBench(a)
	for range 3600 {
		b.tick(controller.Tick{Samples: 200, Sum: 200 * 5 * time.Millisecond, MaxInFlight: 20})
	}
	base, _ := term(a, "baseline_seconds")
	t.judge(b.limit >= 20 && base < 0.0051, "limit %d for 20 connections, baseline %.1f ms", b.limit, 1000*base)
}

func wrongRTT(t *trial) {
	b := newBench(t.new())
	lowest, highest := math.MaxInt, 0
	see := func() { lowest, highest = min(lowest, b.limit), max(highest, b.limit) }
	for _, rtt := range []time.Duration{0, -time.Second, math.MinInt64 / 64, 20 * time.Millisecond, 0, math.MaxInt64 / 64} {
		for range 50 {
			b.tick(controller.Tick{Samples: 50, Sum: 50 * rtt, MaxInFlight: b.limit})
			see()
		}
	}
	l := limitOf(b.Algorithm)
	t.judge(lowest >= 1 && highest <= 65536 && !math.IsNaN(l) && !math.IsInf(l, 0), "%d to %d", lowest, highest)
}

func badPhase(t *trial) {
	b := newBench(t.new(bounds(20, 200)))
	b.windows(60, 20*time.Millisecond)
	former := b.limit
	lowest := slices.Min(b.windows(30, 200*time.Millisecond))
	back := 0
	for i, l := range b.windows(200, 20*time.Millisecond) {
		if float64(l) > 0.9*float64(former) {
			back = i + 1
			break
		}
	}
	t.judge(lowest == 20 && back > 0 && back <= 60, "%d before, lowest %d, back after %d windows", former, lowest, back)
}

func lastingOverload(t *trial) {
	b := newBench(t.new())
	b.windows(600, 50*time.Millisecond)
	onset := b.limit
	highest := slices.Max(b.windows(2000, 500*time.Millisecond)[30:])
	t.judge(2*highest <= onset, "%d at onset, at most %d after", onset, highest)
}

func idlePort(t *trial) {
	b := newBench(t.new(initial(20)))
	for range 600 {
		b.tick(controller.Tick{Samples: 1, Sum: 200 * time.Microsecond, MaxInFlight: 1})
	}
	lowest := math.MaxInt
	for range 600 {
		b.tick(controller.Tick{Samples: 50, Sum: 50 * 20 * time.Millisecond, MaxInFlight: 3})
		lowest = min(lowest, b.limit)
	}
	t.judge(lowest >= 20, "lowest limit %d", lowest)
}
