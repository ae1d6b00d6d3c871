// Command panels draws the panels of the dashboard in mixin/ from what a
// Prometheus has, laid out as Grafana lays them out.
//
//	go run ./tools/panels -prometheus http://127.0.0.1:9090 -o docs/img/dashboard.png
//
// It is for looking at queries, units and layout where there is no Grafana.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// panel is what is read of the dashboard.
type panel struct {
	Type, Title, Description string
	GridPos                  struct{ H, W, X, Y float64 }
	Targets                  []struct{ Expr, LegendFormat, RefID string }
	FieldConfig              struct {
		Defaults struct {
			Unit   string
			Custom struct{ Stacking struct{ Mode string } }
		}
		Overrides []struct {
			Matcher    struct{ ID, Options string }
			Properties []struct{ ID string }
		}
	}
}

// dashed reports whether the lines of a query are.
func (p *panel) dashed(ref string) bool {
	for _, o := range p.FieldConfig.Overrides {
		if o.Matcher.Options == ref && len(o.Properties) > 0 && o.Properties[0].ID == "custom.lineStyle" {
			return true
		}
	}
	return false
}

func main() {
	server := flag.String("prometheus", "http://127.0.0.1:9090", "`URL` of the server")
	file := flag.String("dashboard", "mixin/dashboard.json", "`file` with the dashboard")
	last := flag.Duration("last", 10*time.Minute, "how far back to look")
	out := flag.String("o", "docs/img/dashboard.png", "`file` to write")
	flag.Parse()
	if err := run(*server, *file, *last, *out); err != nil {
		fmt.Fprintln(os.Stderr, "panels:", err)
		os.Exit(1)
	}
}

// The size of a dashboard: Grafana has 24 columns, and rows of one height.
const (
	width   = 15 * vg.Inch
	columns = 24
	unit    = 0.26 * vg.Inch
)

func run(server, file string, last time.Duration, out string) error {
	plot.DefaultFont.Variant = "Sans"
	plotter.DefaultFont.Variant = "Sans"
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var d struct{ Panels []panel }
	if err := json.Unmarshal(text, &d); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	rows := 0.0
	for _, p := range d.Panels {
		rows = max(rows, p.GridPos.Y+p.GridPos.H)
	}
	height := vg.Length(rows) * unit
	png := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(96))}
	page := draw.New(png)
	to := time.Now()
	for i := range d.Panels {
		p := &d.Panels[i]
		lines, err := ask(server, p, to.Add(-last), to)
		if err != nil {
			return fmt.Errorf("panel %s: %w", p.Title, err)
		}
		g := p.GridPos
		place := draw.Crop(page,
			vg.Length(g.X)/columns*width, -(1-vg.Length(g.X+g.W)/columns)*width,
			height-vg.Length(g.Y+g.H)*unit, -vg.Length(g.Y)*unit)
		switch p.Type {
		case "row":
			heading(place, p.Title)
		case "stat":
			number(place, p, lines)
		default:
			if err := chart(place, p, lines, to.Add(-last), to); err != nil {
				return fmt.Errorf("panel %s: %w", p.Title, err)
			}
		}
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	if _, err := png.WriteTo(f); err != nil {
		return fmt.Errorf("%s: %w", out, err)
	}
	return f.Close()
}
