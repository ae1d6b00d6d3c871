package sim

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"math"
)

// The page of a chart, in pixels.
const (
	svgWidth    = 900
	svgLeft     = 64
	svgRight    = 16
	svgTop      = 88
	panelHeight = 200
	panelGap    = 64
	svgHeight   = svgTop + 2*panelHeight + panelGap + 40
)

// svgStyle holds all colours, so that a chart suits a light and a dark page.
// They are spelled out twice because not every renderer knows CSS variables.
const svgStyle = `
  text { fill: #1f2328; font: 13px system-ui, sans-serif; }
  .ground { fill: #ffffff; }
  .title { font-size: 16px; font-weight: 600; }
  .faint { fill: #59636e; font-size: 12px; }
  .grid { stroke: #d8dee4; }
  .line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
  .limit { stroke: #0550ae; }
  .burst { stroke: #0550ae; stroke-dasharray: 1 3; }
  .flight { stroke: #bf5300; }
  .workers { stroke: #59636e; stroke-dasharray: 6 4; }
  .offered { stroke: #59636e; stroke-dasharray: 2 3; }
  .good { stroke: #116329; }
  .bad { stroke: #cf222e; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .ground { fill: #0d1117; }
    .faint { fill: #9198a1; }
    .grid { stroke: #30363d; }
    .limit, .burst { stroke: #79c0ff; }
    .flight { stroke: #ffa657; }
    .workers, .offered { stroke: #9198a1; }
    .good { stroke: #56d364; }
    .bad { stroke: #ff7b72; }
  }
`

// curve is one line of a panel.
type curve struct {
	class, words string
	value        func(SeriesPoint) float64
}

// WriteSVG draws the run over time: above the limit, what was in flight and
// the workers, below the rates at which units were offered, finished in time
// and rejected.
func (r *Result) WriteSVG(to io.Writer) error {
	w := bufio.NewWriter(to)
	title := r.Scenario.Name
	if title == "" {
		title = "Simulation"
	}
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" aria-label="%[3]s">`,
		svgWidth, svgHeight, html.EscapeString(title))
	fmt.Fprintf(w, "\n<style>%s</style>\n<rect class=\"ground\" width=\"100%%\" height=\"100%%\"/>\n", svgStyle)
	fmt.Fprintf(w, "<text class=\"title\" x=\"%d\" y=\"24\">%s</text>\n", svgLeft, html.EscapeString(title))
	fmt.Fprintf(w, "<text class=\"faint\" x=\"%d\" y=\"44\">goodput %.1f/s, %.1f %% rejected, p50 %s, p99 %s</text>\n",
		svgLeft, r.Goodput, 100*float64(r.Rejected)/math.Max(1, float64(r.Offered)), si(r.P50, "s"), si(r.P99, "s"))

	perSecond := func(n func(SeriesPoint) int) func(SeriesPoint) float64 {
		return func(p SeriesPoint) float64 { return float64(n(p)) / r.Step }
	}
	r.panel(w, svgTop, "units", []curve{
		{"burst", "limit with burst", func(p SeriesPoint) float64 { return float64(p.Limit) }},
		{"workers", "workers", func(p SeriesPoint) float64 { return float64(p.Workers) }},
		{"flight", "in flight", func(p SeriesPoint) float64 { return float64(p.InFlight) }},
		{"limit", "limit", func(p SeriesPoint) float64 { return float64(p.Refusing) }},
	})
	r.panel(w, svgTop+panelHeight+panelGap, "units a second", []curve{
		{"offered", "offered", perSecond(func(p SeriesPoint) int { return p.Offered })},
		{"bad", "rejected", perSecond(func(p SeriesPoint) int { return p.Rejected })},
		{"good", "goodput", perSecond(func(p SeriesPoint) int { return p.Good })},
	})
	fmt.Fprintln(w, "</svg>")
	return w.Flush()
}

// panel draws curves over the time axis. A burst allowance may lie far above
// everything else and does not stretch the scale.
func (r *Result) panel(w io.Writer, top int, unit string, curves []curve) {
	points := r.merged(svgWidth - svgLeft - svgRight)
	highest := 0.0
	for _, c := range curves {
		for _, p := range points {
			if c.class != "burst" {
				highest = max(highest, c.value(p))
			}
		}
	}
	yStep := niceStep(max(highest, 1) / 4)
	yMax := yStep * math.Ceil(max(highest, 1)*1.02/yStep)
	tMax := r.Scenario.Duration.Seconds()
	x := func(t float64) float64 { return svgLeft + t/tMax*(svgWidth-svgLeft-svgRight) }
	y := func(v float64) float64 { return float64(top) + panelHeight*(1-min(v, yMax)/yMax) }

	for v := 0.0; v <= yMax*1.001; v += yStep {
		fmt.Fprintf(w, "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text class=\"faint\" text-anchor=\"end\" x=\"%d\" y=\"%.1f\">%s</text>\n",
			svgLeft, y(v), svgWidth-svgRight, svgLeft-8, y(v)+4, si(v, ""))
	}
	for t, step := 0.0, niceStep(tMax/8); t <= tMax*1.001; t += step {
		fmt.Fprintf(w, "<text class=\"faint\" text-anchor=\"middle\" x=\"%.1f\" y=\"%d\">%s</text>\n", x(t), top+panelHeight+18, si(t, "s"))
	}
	fmt.Fprintf(w, "<text class=\"faint\" x=\"%d\" y=\"%d\">%s</text>\n", svgLeft, top-8, unit)
	legend := svgLeft + 130
	for _, c := range curves {
		fmt.Fprintf(w, "<path class=\"line %s\" d=\"M%d %dh24\"/><text x=\"%d\" y=\"%d\">%s</text>\n", c.class, legend, top-12, legend+30, top-8, c.words)
		legend += 50 + 8*len(c.words)
	}
	for _, c := range curves {
		fmt.Fprintf(w, "<path class=\"line %s\" d=\"", c.class)
		for i, p := range points {
			command := 'L'
			if i == 0 {
				command = 'M'
			}
			fmt.Fprintf(w, "%c%.1f %.1f", command, x(p.At), y(c.value(p)))
		}
		fmt.Fprintln(w, "\"/>")
	}
}

// merged returns the series with at most n/4 points, averaged, so that Poisson
// noise does not hide what there is to see; of what is in flight, the most.
func (r *Result) merged(n int) []SeriesPoint {
	by := (len(r.Series)*4 + n - 1) / n
	if by <= 1 {
		return r.Series
	}
	var all []SeriesPoint
	for i := 0; i < len(r.Series); i += by {
		group := r.Series[i:min(i+by, len(r.Series))]
		mean := group[0]
		for _, p := range group[1:] {
			mean.InFlight = max(mean.InFlight, p.InFlight)
			mean.Limit += p.Limit
			mean.Refusing += p.Refusing
			mean.Offered += p.Offered
			mean.Rejected += p.Rejected
			mean.Good += p.Good
		}
		for _, n := range []*int{&mean.Limit, &mean.Refusing, &mean.Offered, &mean.Rejected, &mean.Good} {
			*n /= len(group)
		}
		all = append(all, mean)
	}
	return all
}

// niceStep returns the least of 1, 2 and 5 times a power of ten that is not
// below v.
func niceStep(v float64) float64 {
	scale := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*scale >= v*0.999 {
			return m * scale
		}
	}
	return 10 * scale
}

// si writes a value with at most three digits and a prefix.
func si(v float64, unit string) string {
	space := ""
	if unit != "" {
		space = " "
	}
	switch {
	case v == 0:
		return "0" + space + unit
	case v < 1e-3 && unit != "":
		return fmt.Sprintf("%.3g%su%s", v*1e6, space, unit)
	case v < 1 && unit != "":
		return fmt.Sprintf("%.3g%sm%s", v*1e3, space, unit)
	case v < 1e4:
		return fmt.Sprintf("%.4g%s%s", v, space, unit)
	case v < 1e7:
		return fmt.Sprintf("%.3g%sk%s", v/1e3, space, unit)
	default:
		return fmt.Sprintf("%.3g%sM%s", v/1e6, space, unit)
	}
}
