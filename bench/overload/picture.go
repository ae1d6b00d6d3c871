package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// stroke is how a limiter is drawn: in colours of Okabe and Ito, which nearly
// everybody can tell apart, and with dashes for those who see none.
type stroke struct {
	color  color.Color
	dashes []vg.Length
	width  vg.Length
	glyph  draw.GlyphDrawer
}

var strokes = map[string]stroke{
	noLimiter:            {color.RGBA{0x66, 0x66, 0x66, 0xff}, nil, 1.5, draw.CrossGlyph{}},
	static:               {color.RGBA{0x00, 0x00, 0x00, 0xff}, []vg.Length{2, 2}, 1.5, draw.PlusGlyph{}},
	"nft":                {color.RGBA{0xe6, 0x9f, 0x00, 0xff}, []vg.Length{6, 3}, 1.5, draw.SquareGlyph{}},
	"HAProxy":            {color.RGBA{0x00, 0x9e, 0x73, 0xff}, []vg.Length{8, 2, 2, 2}, 1.5, draw.TriangleGlyph{}},
	"in-process":         {color.RGBA{0xcc, 0x79, 0xa7, 0xff}, []vg.Length{4, 2}, 1.5, draw.RingGlyph{}},
	guarded:              {color.RGBA{0x00, 0x72, 0xb2, 0xff}, nil, 3, draw.CircleGlyph{}},
	"headgate gradient2": {color.RGBA{0xd5, 0x5e, 0x00, 0xff}, nil, 1.5, draw.PyramidGlyph{}},
	"headgate blog":      {color.RGBA{0x56, 0xb4, 0xe9, 0xff}, nil, 1.5, draw.BoxGlyph{}},
}

// picture draws goodput and p99 of each kind of server over the load.
func picture(r Report, file string) error {
	if len(r.Servers) == 0 {
		return nil
	}
	var plots [][]*plot.Plot
	for _, s := range r.Servers {
		goodput, p99 := newPlot(), newPlot()
		goodput.Title.Text = s.Name + ": good answers, as a part of the capacity"
		p99.Title.Text = s.Name + ": p99 of the answered, in service times"
		goodput.Y.Min, goodput.Y.Max = 0, 1.2
		p99.Y.Scale, p99.Y.Min, p99.Y.Max = plot.LogScale{}, 1, 300
		p99.Y.Tick.Marker = ticks{1, 2, 6, 20, 60, 200}
		for _, l := range onTop(s.Limiters, guarded) {
			var good, waits plotter.XYs
			for _, p := range l.Points {
				good = append(good, plotter.XY{X: p.Factor, Y: p.Goodput() / s.Capacity})
				if p.Answered > 0 {
					waits = append(waits, plotter.XY{X: p.Factor, Y: max(1, p.P99Seconds/s.ServiceSeconds)})
				}
			}
			if err := add(goodput, l.Name, good); err != nil {
				return err
			}
			if len(waits) > 0 {
				if err := add(p99, l.Name, waits); err != nil {
					return err
				}
			}
		}
		plots = append(plots, []*plot.Plot{goodput, p99})
	}
	const legend = 40
	height := vg.Length(len(plots))*3.1*vg.Inch + legend
	c := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(12*vg.Inch, height), vgimg.UseDPI(110))}
	page := draw.New(c)
	key(plots[0][0], draw.Crop(page, 30, -10, page.Max.Y-legend, -8))
	tiles := draw.Tiles{Rows: len(plots), Cols: 2, PadX: 20, PadY: 14, PadTop: legend, PadBottom: 6, PadLeft: 6, PadRight: 12}
	for i, canvases := range plot.Align(plots, tiles, page) {
		for j := range canvases {
			plots[i][j].Legend = plot.NewLegend()
			plots[i][j].Draw(canvases[j])
		}
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

// onTop is the limiters with one of them last.
func onTop(all []Limiter, name string) []Limiter {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b Limiter) int {
		last := func(l Limiter) int {
			if l.Name == name {
				return 1
			}
			return 0
		}
		return last(a) - last(b)
	})
	return sorted
}

// key draws what the strokes mean, in one row above all plots.
func key(p *plot.Plot, c draw.Canvas) {
	style := p.Legend.TextStyle
	x := c.Min.X
	for _, l := range limiters {
		s := strokes[l.Name]
		y := c.Min.Y + 14
		c.StrokeLine2(draw.LineStyle{Color: s.color, Width: s.width, Dashes: s.dashes}, x, y, x+24, y)
		c.DrawGlyph(draw.GlyphStyle{Color: s.color, Radius: 3, Shape: s.glyph}, vg.Point{X: x + 12, Y: y})
		c.FillText(style, vg.Point{X: x + 28, Y: y - 4}, l.Name)
		x += 28 + style.Width(l.Name) + 14
	}
}

func newPlot() *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	p.X.Label.Text = "offered load, in times the capacity"
	p.X.Scale, p.X.Min, p.X.Max = plot.LogScale{}, 0.45, 11
	p.X.Tick.Marker = ticks{0.5, 1, 1.4, 2, 5, 10}
	p.Add(plotter.NewGrid())
	return p
}

func add(p *plot.Plot, name string, xy plotter.XYs) error {
	line, points, err := plotter.NewLinePoints(xy)
	if err != nil {
		return err
	}
	s := strokes[name]
	line.Color, line.Dashes, line.Width = s.color, s.dashes, s.width
	points.Color, points.Shape, points.Radius = s.color, s.glyph, 3
	p.Add(line, points)
	return nil
}

// ticks are the places of an axis that have a number.
type ticks []float64

// Ticks returns them.
func (t ticks) Ticks(lo, hi float64) (all []plot.Tick) {
	for _, v := range t {
		if v >= lo && v <= hi && !math.IsNaN(v) {
			all = append(all, plot.Tick{Value: v, Label: fmt.Sprintf("%g", v)})
		}
	}
	return all
}
