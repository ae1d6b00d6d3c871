package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"headgate/internal/scenarios"
)

// compare runs all algorithms through a set of scenarios.
func compare(cmd *cobra.Command, o simulateOptions) error {
	write, ok := map[string]func(io.Writer, *scenarios.Comparison) error{
		"text":     writeComparison,
		"json":     func(w io.Writer, c *scenarios.Comparison) error { return writeIndented(w, c) },
		"markdown": func(w io.Writer, c *scenarios.Comparison) error { return c.WriteMarkdown(w) },
	}[o.output]
	if !ok {
		return usageError{fmt.Errorf("--output: %q is none of text, json, markdown", o.output)}
	}
	if _, err := scenarios.Set(o.set); err != nil {
		return usageError{fmt.Errorf("--compare: %w", err)}
	}
	if o.seeds < 1 {
		return usageError{fmt.Errorf("--seeds: %d is less than 1", o.seeds)}
	}
	var other error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains([]string{"compare", "seeds", "output"}, f.Name) {
			other = usageError{fmt.Errorf("--compare: the scenarios are those of the set; --%s has no meaning with it", f.Name)}
		}
	})
	if other != nil {
		return other
	}
	say := sparing(cmd.ErrOrStderr(), time.Now)
	c, err := scenarios.Compare(cmd.Context(), o.set, o.seeds, func(done, of int) { say("%d of %d scenarios\n", done, of) })
	if err != nil {
		return err
	}
	return write(cmd.OutOrStdout(), c)
}

func writeComparison(w io.Writer, c *scenarios.Comparison) error {
	fmt.Fprintf(w, "goodput over that of the best constant limit, %d scenarios, %d runs each\n\n", len(c.Algorithms[0].Scores), c.Seeds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "algorithm\tmean\tp10\tat least .95\tmedian p99, service times")
	for _, r := range c.Algorithms {
		fmt.Fprintf(t, "%s\t%.3f\t%.3f\t%d\t%.1f\n", r.Algorithm, r.Mean, r.P10, r.Good, r.P99)
	}
	return t.Flush()
}
