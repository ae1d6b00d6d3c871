package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// markdown prints the tables of docs/evidence.md.
func (r Report) markdown(w io.Writer) error {
	var b strings.Builder
	for _, s := range r.Servers {
		s.markdown(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (s Server) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "### %s\n\n", s.Name)
	fmt.Fprintf(b, "%s: %s. It carries\n%.0f a second; one alone takes %.1f ms, so that an answer within %.0f ms is good. Best\nstatic limit: %d. Measured %s.\n\n",
		s.Name, s.Says, s.Capacity, 1e3*s.ServiceSeconds, 1e3*s.BoundSeconds, s.Static, s.Machine.Date)
	var factors []float64
	for _, p := range s.Limiters[0].Points {
		factors = append(factors, p.Factor)
	}
	row := func(first string, cell func(float64) string) {
		fmt.Fprintf(b, "| %s |", first)
		for _, f := range factors {
			fmt.Fprintf(b, " %s |", cell(f))
		}
		b.WriteByte('\n')
	}
	row("goodput, as a part of the best with a static limit", func(f float64) string { return fmt.Sprintf("%gx", f) })
	fmt.Fprintf(b, "|---|%s\n", strings.Repeat("---|", len(factors)))
	row("the best with a static limit", func(f float64) string {
		p, with := s.best(f)
		return fmt.Sprintf("%.0f/s, %s", p.Goodput(), strings.TrimPrefix(with, "headgate "))
	})
	for _, l := range s.Limiters {
		row(l.Name, func(f float64) string {
			mine, ok := l.at(f)
			best, _ := s.best(f)
			if !ok || best.Good == 0 {
				return ""
			}
			return fmt.Sprintf("%.2f", mine.Goodput()/best.Goodput())
		})
	}
	b.WriteByte('\n')
	row("p50 / p99 of the answered, in service times", func(f float64) string { return fmt.Sprintf("%gx", f) })
	fmt.Fprintf(b, "|---|%s\n", strings.Repeat("---|", len(factors)))
	for _, l := range s.Limiters {
		row(l.Name, func(f float64) string {
			p, ok := l.at(f)
			if !ok || p.Answered == 0 {
				return "none"
			}
			return fmt.Sprintf("%.1f / %.1f", p.P50Seconds/s.ServiceSeconds, p.P99Seconds/s.ServiceSeconds)
		})
	}
	b.WriteByte('\n')
	share := func(what string, of func(Point) uint64) {
		row(what+", of all", func(f float64) string { return fmt.Sprintf("%gx", f) })
		fmt.Fprintf(b, "|---|%s\n", strings.Repeat("---|", len(factors)))
		for _, l := range s.Limiters {
			row(l.Name, func(f float64) string {
				p, _ := l.at(f)
				if p.Arrived == 0 {
					return ""
				}
				return fmt.Sprintf("%.0f %%", 100*float64(of(p))/float64(p.Arrived))
			})
		}
		b.WriteByte('\n')
	}
	share("turned away", func(p Point) uint64 { return p.Refused + p.Reset + p.Failed })
	if s.pooled() {
		share("gave up without an answer", func(p Point) uint64 { return p.TimedOut })
	}
	fmt.Fprintf(b, "| settled after a step from 0.5x to 1.4x, s | median | each |\n|---|---|---|\n")
	for _, l := range s.Limiters {
		if len(l.Settling) == 0 {
			continue
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", l.Name, settling(median(l.Settling)), joined(l.Settling))
	}
	b.WriteByte('\n')
}

func settling(s float64) string {
	switch {
	case s < 0:
		return "not in the step"
	case s < resolution.Seconds():
		return fmt.Sprintf("< %.2f", resolution.Seconds())
	}
	return fmt.Sprintf("%.2f", s)
}

func joined(all []float64) string {
	var texts []string
	for _, s := range all {
		texts = append(texts, settling(s))
	}
	return strings.Join(texts, ", ")
}

// median takes what never settled for the longest of all.
func median(all []float64) float64 {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b float64) int {
		switch {
		case a == b:
			return 0
		case a < 0 || b >= 0 && a > b:
			return 1
		}
		return -1
	})
	return sorted[len(sorted)/2]
}
