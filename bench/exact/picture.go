package main

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"headgate/bench/internal/picture"
)

var strokes = []picture.Stroke{
	{Color: picture.Orange, Width: 4, Glyph: draw.SquareGlyph{}},
	{Color: picture.Green, Width: 4, Glyph: draw.TriangleGlyph{}},
	{Color: picture.Blue, Width: 4, Glyph: draw.CircleGlyph{}},
}

// drawPicture draws how many were inside at once in each burst, and the visits of real
// clients before, beside and after the flood.
func drawPicture(r Report, file string) error {
	bursts, visits := plot.New(), plot.New()
	bursts.Title.Text = fmt.Sprintf("%d connects at once, limit %d: at once inside", burstSize, r.Limit)
	bursts.X.Label.Text, bursts.Y.Label.Text = "burst", "connections"
	visits.Title.Text = fmt.Sprintf("Visits of %d real clients in %.0f s", regulars, r.Gates[0].Flood.Seconds)
	visits.Y.Label.Text = "answered"
	for _, p := range []*plot.Plot{bursts, visits} {
		p.BackgroundColor = color.White
		p.Y.Min = 0
	}
	bursts.Add(plotter.NewGrid())
	var key []picture.Named
	for i, g := range r.Gates {
		stroke := strokes[i%len(strokes)]
		key = append(key, picture.Named{Name: g.Name, Stroke: stroke})
		apart := float64(i) - float64(len(r.Gates)-1)/2
		var inside plotter.XYs
		for at, b := range g.Bursts {
			inside = append(inside, plotter.XY{X: float64(at+1) + apart/5, Y: float64(b.Peak)})
		}
		points, err := plotter.NewScatter(inside)
		if err != nil {
			return err
		}
		points.GlyphStyle = stroke.Points()
		bursts.Add(points)
		bars, err := plotter.NewBarChart(plotter.Values{float64(g.Flood.Before.Made), float64(g.Flood.During.Made), float64(g.Flood.After.Made)}, 24)
		if err != nil {
			return err
		}
		bars.Color, bars.LineStyle.Width, bars.Offset = stroke.Color, 0, vg.Length(apart*26)
		visits.Add(bars)
	}
	limit, err := plotter.NewLine(plotter.XYs{{X: .5, Y: float64(r.Limit)}, {X: float64(len(r.Gates[0].Bursts)) + .5, Y: float64(r.Limit)}})
	if err != nil {
		return err
	}
	limit.LineStyle = draw.LineStyle{Color: picture.Black, Width: 1, Dashes: []vg.Length{4, 3}}
	bursts.Add(limit)
	bursts.Y.Max = 1.2 * float64(r.Limit)
	visits.NominalX("before", fmt.Sprintf("beside %d spoofed SYNs a second", floodRate), "a second after it")
	c := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(10*vg.Inch, 4*vg.Inch), vgimg.UseDPI(120))}
	page := draw.New(c)
	const keyHeight = 24
	picture.Key(draw.Crop(page, 20, 0, 0, keyHeight-page.Max.Y), key)
	tiles := draw.Tiles{Rows: 1, Cols: 2, PadX: 14, PadTop: 8, PadBottom: 4, PadLeft: 8, PadRight: 14}
	plots := [][]*plot.Plot{{bursts, visits}}
	for _, row := range plot.Align(plots, tiles, draw.Crop(page, 0, 0, keyHeight, 0)) {
		for i, canvas := range row {
			plots[0][i].Draw(canvas)
		}
	}
	return picture.Write(c, file)
}
