package main

import (
	"fmt"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// Colours of Okabe and Ito, which nearly everybody can tell apart, in the order
// of the gates; and a dash for each, for those who see none.
var strokes = []struct {
	color  color.Color
	dashes []vg.Length
	width  vg.Length
}{
	{color.RGBA{0x66, 0x66, 0x66, 0xff}, nil, 1.5},
	{color.RGBA{0xe6, 0x9f, 0x00, 0xff}, []vg.Length{6, 3}, 1.5},
	{color.RGBA{0xcc, 0x79, 0xa7, 0xff}, []vg.Length{2, 2}, 1.5},
	{color.RGBA{0x00, 0x9e, 0x73, 0xff}, []vg.Length{8, 2, 2, 2}, 1.5},
	{color.RGBA{0x00, 0x72, 0xb2, 0xff}, nil, 2.5},
	{color.RGBA{0xd5, 0x5e, 0x00, 0xff}, nil, 2.5},
}

// picture draws goodput with all gates, and what headgate's limit did.
func picture(r Report, file string) error {
	goodput := newPlot("A sale begins and the database stalls: answers within a second", "requests/s")
	waits := newPlot("What the answered waited, p99", "s")
	limit := newPlot("headgate, connections: the limit and what is in flight", "connections")
	waits.Y.Min, limit.Y.Min, goodput.Y.Min = 0, 0, 0
	for i, g := range r.Gates {
		var good, p99 plotter.XYs
		for at, s := range g.Seconds {
			good = append(good, plotter.XY{X: float64(at) + .5, Y: float64(s.Good)})
			if s.P99 > 0 {
				p99 = append(p99, plotter.XY{X: float64(at) + .5, Y: s.P99})
			}
		}
		if err := add(goodput, g.Name, good, i); err != nil {
			return err
		}
		if len(p99) > 0 {
			if err := add(waits, "", p99, i); err != nil {
				return err
			}
		}
		if len(g.Looks) > 0 && limit.Legend.XOffs == 0 {
			var limits, inside plotter.XYs
			for _, l := range g.Looks {
				limits = append(limits, plotter.XY{X: l.At, Y: float64(l.Limit)})
				inside = append(inside, plotter.XY{X: l.At, Y: float64(l.InFlight)})
			}
			if err := add(limit, "limit", limits, i); err != nil {
				return err
			}
			if err := add(limit, "in flight", inside, 0); err != nil {
				return err
			}
			limit.Legend.XOffs = -vg.Points(1)
		}
	}
	c := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(10*vg.Inch, 9*vg.Inch), vgimg.UseDPI(120))}
	page := draw.New(c)
	plots := [][]*plot.Plot{{goodput}, {waits}, {limit}}
	tiles := draw.Tiles{Rows: 3, Cols: 1, PadY: vg.Points(14), PadTop: vg.Points(8), PadBottom: vg.Points(8), PadLeft: vg.Points(8), PadRight: vg.Points(14)}
	for i, canvases := range plot.Align(plots, tiles, page) {
		sale(plots[i][0], r.Story)
		plots[i][0].Draw(canvases[0])
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := c.WriteTo(f); err != nil {
		f.Close()
		return fmt.Errorf("draw %s: %w", file, err)
	}
	return f.Close()
}

func newPlot(title, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "s", y
	p.Legend.Top = true
	p.BackgroundColor = color.White
	p.Add(plotter.NewGrid())
	return p
}

func add(p *plot.Plot, name string, xy plotter.XYs, stroke int) error {
	line, err := plotter.NewLine(xy)
	if err != nil {
		return err
	}
	s := strokes[stroke%len(strokes)]
	line.Color, line.Dashes, line.Width = s.color, s.dashes, s.width
	p.Add(line)
	if name != "" {
		p.Legend.Add(name, line)
	}
	return nil
}

// sale shades the time of the sale, behind the lines.
func sale(p *plot.Plot, s Story) {
	p.X.Min, p.X.Max = 0, s.Seconds()
	for _, at := range []float64{s.Calm, s.Calm + s.Sale} {
		line, err := plotter.NewLine(plotter.XYs{{X: at, Y: p.Y.Min}, {X: at, Y: p.Y.Max}})
		if err != nil {
			continue
		}
		line.Color, line.Dashes = color.Gray{0x40}, []vg.Length{1, 3}
		p.Add(line)
	}
}
