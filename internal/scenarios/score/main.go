// Score runs an algorithm through a set of scenarios and prints how its
// goodput compares with that of the best constant limit known afterwards.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"headgate/internal/scenarios"
	"headgate/pkg/controller"
	"headgate/pkg/sim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "score:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	set := flag.String("set", "tuning", "tuning, drawn (for tuning too, by -draw) or report (look rarely)")
	draw := flag.String("draw", "1", "seeds of the drawn sets, with commas")
	count := flag.Int("n", 48, "scenarios to draw")
	seeds := flag.Int("seeds", 5, "runs of each scenario")
	only := flag.String("only", "", "only scenarios whose name contains this")
	cache := flag.String("cache", "", "file that keeps the searches for the best constant limit")
	verbose := flag.Bool("v", false, "print every scenario")
	name := flag.String("algorithm", "guarded", "the algorithm, with its defaults; aimd is told five service times")
	dither := flag.Float64("dither", -1, "dither of guarded; negative for its default")
	failures := flag.Bool("failures", false, "instead print the table of failure scenarios, all algorithms, in Markdown")
	flag.Parse()

	if *failures {
		return scenarios.WriteTable(ctx, os.Stdout)
	}

	scorer, err := scenarios.NewScorer(*seeds, *cache)
	if err != nil {
		return err
	}
	var todo []scenarios.Drawn
	switch *set {
	case "drawn":
		for _, text := range strings.Split(*draw, ",") {
			seed, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return fmt.Errorf("-draw: %w", err)
			}
			todo = append(todo, scenarios.Draw(seed, *count)...)
		}
	default:
		if todo, err = scenarios.Set(*set); err != nil {
			return fmt.Errorf("-set: %w", err)
		}
	}
	var all []scenarios.Score
	families := map[string][]scenarios.Score{}
	for _, d := range todo {
		if !strings.Contains(d.Name, *only) {
			continue
		}
		s, err := scorer.Score(ctx, d.Scenario, func() (controller.Algorithm, error) { return algorithm(*name, *dither, d.Scenario) })
		if err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
		if *verbose {
			fmt.Printf("%.3f  p99 %6.1f S  rejected %4.1f %%  limit %6.0f  best %5d  %s\n", s.Ratio, s.P99, 100*s.Rejected, s.Limit, s.Best, s.Name)
		}
		all = append(all, s)
		families[d.Family] = append(families[d.Family], s)
	}
	for _, f := range scenarios.Families {
		if len(families[f]) > 0 {
			print(f, families[f])
		}
	}
	print("all", all)
	return nil
}

func print(name string, scores []scenarios.Score) {
	s := scenarios.Summarise(scores)
	fmt.Printf("%-10s mean %.3f  p10 %.3f  >= .95: %2d of %2d  median p99 %.1f S\n", name, s.Mean, s.P10, s.Good, len(scores), s.P99)
}

// algorithm returns a new instance, told what it has to know of the scenario.
func algorithm(name string, dither float64, sc sim.Scenario) (controller.Algorithm, error) {
	p := scenarios.SettingsFor(name, sc)
	if dither >= 0 {
		p.Dither = &dither
	}
	return controller.New(name, p)
}
