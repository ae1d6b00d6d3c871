package controller

// Terms implements [Algorithm].
func (g *Guarded) Terms() []Term {
	share := 0.0
	if g.rtt > 0 {
		share = g.baseline / g.rtt
	}
	return []Term{
		{"limit", g.limit, "Units that may be in flight, before burst allowance, dither or probe."},
		{"enforced", float64(g.decision.Limit), "The limit in force now, with burst allowance, dither or probe."},
		{"baseline_seconds", g.baseline, "Time of a unit when none waits; under pressure only a probe raises it."},
		{"round_trip_seconds", g.rtt, "Mean time of a unit in the last windows."},
		{"gradient", share, "Baseline over round trip: 1 means no queue, below 0.7 means that one stands. The limit is multiplied by it, but never by less than 0.5 or more than 1."},
		{"throughput_per_second", g.rate, "Units finished a second in the last windows."},
		{"peak_per_second", g.peak, "The most units finished a second, forgotten at 1 % a second."},
		{"carried", g.rate * g.baseline, "Units that the target works on at once without a queue: throughput times baseline (Little's law)."},
		{"headroom", g.headroom, "Share of the carried units that a window adds; below 1 where a larger limit was seen to finish fewer units."},
		{"growth", g.growth(), "Units that a window would add to the limit where no queue stands; half of it, times headroom, is taken."},
		{"burst", float64(g.decision.Limit - g.decision.AfterRefusal), "Units above the limit that are let in until the first refusal."},
		{"former_limit", g.former, "The limit when the last queue was first seen; once the queue is gone the limit comes back to it quickly."},
		{"starting", truth(g.starting), "1 while no queue was ever seen: the limit grows by the carried units each window."},
		{"pressed_windows", float64(g.pressed), "Windows in a row in which the limit was reached or something was refused; from 10 on a probe may come."},
		{"probing", truth(g.probe.open), "1 while a probe times a few units at a reduced limit."},
		{"probes_total", float64(g.probe.count), "Probes ended since the start."},
		{"probe_gap_seconds", g.probe.gap, "The least time from one probe to the next; it doubles while probes confirm the baseline."},
		{"floored", truth(g.floored), "1 when the limit is at its minimum and a queue stands all the same."},
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
