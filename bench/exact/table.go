package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// markdown prints the table of docs/evidence.md.
func (r Report) markdown(w io.Writer) error {
	var b strings.Builder
	row := func(first string, cell func(Gate) string) {
		fmt.Fprintf(&b, "| %s |", first)
		for _, g := range r.Gates {
			fmt.Fprintf(&b, " %s |", cell(g))
		}
		b.WriteByte('\n')
	}
	row("", func(g Gate) string { return g.Name })
	fmt.Fprintf(&b, "|---|%s\n", strings.Repeat("---|", len(r.Gates)))
	row("set to", func(g Gate) string { return g.Says })
	n := len(r.Gates[0].Bursts)
	row(fmt.Sprintf("%d connects at once, %d times: at once inside", burstSize, n), func(g Gate) string {
		return spread(g.Bursts, func(b Burst) int { return b.Peak })
	})
	row("the most over the limit", func(g Gate) string {
		most := 0
		for _, b := range g.Bursts {
			most = max(most, b.Peak-r.Limit)
		}
		return fmt.Sprint(most)
	})
	row("answered", func(g Gate) string { return spread(g.Bursts, func(b Burst) int { return int(b.Answered) }) })
	row("refused at once (RST to the SYN)", func(g Gate) string { return spread(g.Bursts, func(b Burst) int { return int(b.Refused) }) })
	row("accepted by the gate, then closed", func(g Gate) string {
		return spread(g.Bursts, func(b Burst) int { return int(b.Reset + b.TimedOut + b.Failed) })
	})
	row("failed of connections that come and go below the limit", func(g Gate) string {
		return fmt.Sprintf("%d of %d", g.Churn.Refused, g.Churn.Connections)
	})
	row(fmt.Sprintf("%d at once after these: at once inside", burstSize), func(g Gate) string { return fmt.Sprint(g.Churn.After.Peak) })
	row("counted when nothing was in flight", func(g Gate) string {
		if g.Churn.Counted == nil {
			return "does not say"
		}
		return fmt.Sprint(*g.Churn.Counted)
	})
	row(fmt.Sprintf("visits of %d clients in %.0f s, failed", regulars, r.Gates[0].Flood.Seconds), func(g Gate) string { return g.Flood.Before.String() })
	row(fmt.Sprintf("beside %d spoofed SYNs a second", floodRate), func(g Gate) string { return g.Flood.During.String() })
	row("a second after the flood", func(g Gate) string { return g.Flood.After.String() })
	_, err := io.WriteString(w, b.String())
	return err
}

func (v Visits) String() string { return fmt.Sprintf("%d, %d", v.Made, v.Failed) }

// spread is the least and the most, or the one value.
func spread(all []Burst, of func(Burst) int) string {
	var values []int
	for _, b := range all {
		values = append(values, of(b))
	}
	lo, hi := slices.Min(values), slices.Max(values)
	if lo == hi {
		return fmt.Sprint(lo)
	}
	return fmt.Sprintf("%d to %d", lo, hi)
}
