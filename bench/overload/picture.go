package main

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"headgate/bench/internal/picture"
)

var strokes = map[string]picture.Stroke{
	noLimiter:                    {Color: picture.Grey, Width: 1.5, Glyph: draw.CrossGlyph{}},
	static:                       {Color: picture.Black, Dashes: []vg.Length{2, 2}, Width: 1.5, Glyph: draw.PlusGlyph{}},
	"nft":                        {Color: picture.Orange, Dashes: []vg.Length{6, 3}, Width: 1.5, Glyph: draw.SquareGlyph{}},
	"HAProxy":                    {Color: picture.Green, Dashes: []vg.Length{8, 2, 2, 2}, Width: 1.5, Glyph: draw.TriangleGlyph{}},
	"in-process":                 {Color: picture.Purple, Dashes: []vg.Length{4, 2}, Width: 1.5, Glyph: draw.RingGlyph{}},
	guarded:                      {Color: picture.Blue, Width: 3, Glyph: draw.CircleGlyph{}},
	"headgate gradient2":         {Color: picture.Vermilion, Width: 1.5, Glyph: draw.PyramidGlyph{}},
	"headgate 8 by request":      {Color: picture.Purple, Dashes: []vg.Length{2, 4}, Width: 1.5, Glyph: draw.PyramidGlyph{}},
	"headgate guarded, requests": {Color: picture.Blue, Dashes: []vg.Length{3, 3}, Width: 1.5, Glyph: draw.RingGlyph{}},
	"headgate blog":              {Color: picture.SkyBlue, Width: 1.5, Glyph: draw.BoxGlyph{}},
}

// drawPicture draws goodput and p99 of each kind of server over the load.
func drawPicture(r Report, file string) error {
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
	const legend = 58
	height := vg.Length(len(plots))*3.1*vg.Inch + legend
	c := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(12*vg.Inch, height), vgimg.UseDPI(110))}
	page := draw.New(c)
	var names []picture.Named
	for _, l := range limiters {
		names = append(names, picture.Named{Name: l.Name, Stroke: strokes[l.Name]})
	}
	picture.Key(draw.Crop(page, 30, -10, page.Max.Y-legend, -8), names)
	tiles := draw.Tiles{Rows: len(plots), Cols: 2, PadX: 20, PadY: 14, PadTop: legend, PadBottom: 6, PadLeft: 6, PadRight: 12}
	for i, canvases := range plot.Align(plots, tiles, page) {
		for j := range canvases {
			plots[i][j].Draw(canvases[j])
		}
	}
	return picture.Write(c, file)
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
	line.LineStyle, points.GlyphStyle = strokes[name].Line(), strokes[name].Points()
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
