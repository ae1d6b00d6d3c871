// Command picture draws what `headgate demo -o json` has measured.
//
//	headgate demo -o json | go run ./tools/picture > docs/img/demo.png
package main

import (
	"encoding/json"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"headgate/pkg/demo"
)

// Colours that differ in lightness too, for those who do not see hues.
var (
	dark   = color.RGBA{0x1b, 0x3a, 0x5d, 0xff}
	bright = color.RGBA{0xe0, 0x7b, 0x00, 0xff}
	grey   = color.RGBA{0x88, 0x88, 0x88, 0xff}
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	var r demo.Result
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		return fmt.Errorf("read the result of a demo: %w", err)
	}
	answers, err := answersPlot(&r)
	if err != nil {
		return err
	}
	inside, err := insidePlot(&r)
	if err != nil {
		return err
	}

	c := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(9*vg.Inch, 5.4*vg.Inch), vgimg.UseDPI(144))}
	page := draw.New(c)
	plots := [][]*plot.Plot{{answers}, {inside}}
	tiles := draw.Tiles{Rows: 2, Cols: 1, PadY: vg.Points(14), PadTop: vg.Points(8), PadBottom: vg.Points(8), PadLeft: vg.Points(8), PadRight: vg.Points(14)}
	for i, canvases := range plot.Align(plots, tiles, page) {
		plots[i][0].Draw(canvases[0])
	}
	_, err = c.WriteTo(out)
	return err
}

// answersPlot shows what the clients get.
func answersPlot(r *demo.Result) (*plot.Plot, error) {
	p := plot.New()
	offered := float64(r.Enforce.Arrived) / r.Enforce.Seconds
	p.Title.Text = fmt.Sprintf("A server that carries %.0f requests/s is offered %.0f: headgate observes, then enforces", r.CapacityPerSecond, offered)
	p.Y.Label.Text = "answers a second"
	p.Y.Min, p.Y.Max = 0, 1.25*r.CapacityPerSecond
	p.Y.Tick.Marker = every(200)
	p.X.Tick.Marker = every(5)
	if err := add(p, r, "", dark, func(s demo.Sample) float64 { return s.Answered }); err != nil {
		return nil, err
	}
	p.Add(phases(r, p.X.Label.TextStyle))
	return p, nil
}

// insidePlot shows the server's inside: on a logarithmic axis, as it differs a
// thousandfold.
func insidePlot(r *demo.Result) (*plot.Plot, error) {
	p := plot.New()
	p.X.Label.Text = "seconds"
	p.Y.Label.Text = "requests; ms"
	p.X.Tick.Marker = every(5)
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(2)
	p.Y.Scale = plot.LogScale{}
	p.Y.Tick.Marker = plot.LogTicks{Prec: -1}
	p.Y.Min, p.Y.Max = 1, 100000
	for _, line := range []struct {
		name  string
		color color.Color
		value func(demo.Sample) float64
	}{
		{"in flight", dark, func(s demo.Sample) float64 { return float64(s.InFlight) }},
		{"limit", bright, func(s demo.Sample) float64 { return float64(s.Limit) }},
		{"service time, ms", grey, func(s demo.Sample) float64 { return s.ServiceSeconds * 1000 }},
	} {
		at := func(s demo.Sample) float64 { return max(line.value(s), 1) }
		if err := add(p, r, line.name, line.color, at); err != nil {
			return nil, err
		}
	}
	p.Add(phases(r, text.Style{}))
	return p, nil
}

// every puts a labelled tick at each multiple of step.
func every(step float64) plot.Ticker {
	return plot.TickerFunc(func(lo, hi float64) []plot.Tick {
		var ticks []plot.Tick
		for v := math.Ceil(lo/step) * step; v <= hi; v += step {
			ticks = append(ticks, plot.Tick{Value: v, Label: fmt.Sprintf("%.0f", v)})
		}
		return ticks
	})
}

func add(p *plot.Plot, r *demo.Result, name string, c color.Color, value func(demo.Sample) float64) error {
	points := make(plotter.XYs, 0, len(r.Timeline))
	for _, s := range r.Timeline {
		points = append(points, plotter.XY{X: s.Seconds, Y: value(s)})
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return fmt.Errorf("draw %s: %w", name, err)
	}
	line.Color = c
	line.Width = vg.Points(1.8)
	p.Add(line)
	if name != "" {
		p.Legend.Add(name, line)
	}
	return nil
}

// phases marks where the phases begin, and names them where a style is given.
func phases(r *demo.Result, label text.Style) plot.Plotter {
	dashed := draw.LineStyle{Color: grey, Width: vg.Points(0.7), Dashes: []vg.Length{vg.Points(3), vg.Points(3)}}
	return plotterFunc(func(c draw.Canvas, p *plot.Plot) {
		x, _ := p.Transforms(&c)
		last := ""
		for _, s := range r.Timeline {
			if s.Phase == last {
				continue
			}
			last = s.Phase
			at := x(s.Seconds)
			c.StrokeLine2(dashed, at, c.Min.Y, at, c.Max.Y)
			if label.Handler != nil {
				label.XAlign, label.YAlign = draw.XLeft, draw.YTop
				label.Font.Size = vg.Points(10)
				c.FillText(label, vg.Point{X: at + vg.Points(4), Y: c.Max.Y}, s.Phase)
			}
		}
	})
}

type plotterFunc func(draw.Canvas, *plot.Plot)

func (f plotterFunc) Plot(c draw.Canvas, p *plot.Plot) { f(c, p) }
