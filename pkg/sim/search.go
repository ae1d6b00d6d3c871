package sim

import (
	"context"
	"math"
	"slices"

	"headgate/pkg/controller"
)

// BestStatic searches for the constant limit that would have had the highest
// mean goodput over the seeds, had one known it: a coarse grid from a quarter
// of the workers up to 16 units a worker (64 for few workers), or until the
// goodput has clearly fallen, then the gaps beside the best limit, each halved
// until they are under 5 %.
func BestStatic(ctx context.Context, sc Scenario, seeds []uint64) (limit int, good float64, err error) {
	sc = sc.WithDefaults()
	least, most := sc.Server.Workers, sc.Server.Workers
	for _, c := range sc.Server.Changes {
		if c.Workers > 0 {
			least, most = min(least, c.Workers), max(most, c.Workers)
		}
	}
	most = max(64, 16*most)

	known := map[int]float64{}
	score := func(n int) float64 {
		if g, ok := known[n]; ok || err != nil {
			return g
		}
		g := 0.0
		for _, seed := range seeds {
			sc.Seed = seed
			var r *Result
			if r, err = Run(ctx, sc, constant(n), nil); err != nil {
				return 0
			}
			g += float64(r.Good) / float64(len(seeds))
		}
		known[n] = g
		return g
	}
	highest, falls := 0.0, 0
	for x := max(1, float64(least)/4); x <= float64(most) && falls < 3; x *= math.Sqrt2 {
		g := score(int(math.Round(x)))
		highest = max(highest, g)
		falls++
		if g > 0.8*highest {
			falls = 0
		}
	}
	for err == nil {
		var tried []int
		for n := range known {
			tried = append(tried, n)
		}
		slices.Sort(tried)
		best := 0
		for i, n := range tried {
			if known[n] > known[tried[best]] {
				best = i
			}
		}
		grew := false
		for _, i := range []int{best - 1, best} {
			if i < 0 || i+1 >= len(tried) {
				continue
			}
			lo, hi := tried[i], tried[i+1]
			if hi-lo > 1 && float64(hi-lo) > 0.05*float64(lo) {
				score((lo + hi) / 2)
				grew = true
			}
		}
		if !grew {
			return tried[best], known[tried[best]], nil
		}
	}
	return 0, 0, err
}

// constant is a limit that never moves.
type constant int

func (c constant) Decide(controller.Tick) controller.Decision {
	return controller.Decision{Limit: int(c), AfterRefusal: int(c)}
}

func (c constant) Terms() []controller.Term { return nil }
