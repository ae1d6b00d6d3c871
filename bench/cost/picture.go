package main

import (
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"headgate/bench/internal/picture"
)

// drawPicture draws the ratios: every pair, the quartiles and the median, and the goal.
func drawPicture(r Report, file string) error {
	p := plot.New()
	p.Title.Text = "What is left with it, of what there is without: each pair, quartiles, median"
	p.X.Label.Text = "ratio"
	p.BackgroundColor = color.White
	p.Add(plotter.NewGrid())
	median := picture.Stroke{Color: picture.Blue, Width: 3}
	goal := picture.Stroke{Color: picture.Vermilion, Width: 3, Dashes: []vg.Length{4, 2}}
	var names []string
	for i := range r.Ratios {
		q := r.Ratios[len(r.Ratios)-1-i] // the first one on top
		names = append(names, q.Name)
		y := float64(i)
		var each plotter.XYs
		for _, x := range q.Each {
			each = append(each, plotter.XY{X: x, Y: y})
		}
		points, err := plotter.NewScatter(each)
		if err != nil {
			return err
		}
		points.GlyphStyle = draw.GlyphStyle{Color: picture.Grey, Radius: 1.5, Shape: draw.CircleGlyph{}}
		p.Add(points)
		lines := []struct {
			s  picture.Stroke
			xy plotter.XYs
		}{
			{picture.Stroke{Color: picture.Black, Width: 1.5}, plotter.XYs{{X: q.Lower, Y: y}, {X: q.Upper, Y: y}}},
			{median, plotter.XYs{{X: q.Median, Y: y - .3}, {X: q.Median, Y: y + .3}}},
		}
		if q.Goal > 0 {
			lines = append(lines, struct {
				s  picture.Stroke
				xy plotter.XYs
			}{goal, plotter.XYs{{X: q.Goal, Y: y - .4}, {X: q.Goal, Y: y + .4}}})
		}
		for _, l := range lines {
			line, err := plotter.NewLine(l.xy)
			if err != nil {
				return err
			}
			line.LineStyle = l.s.Line()
			p.Add(line)
		}
	}
	p.NominalY(names...)
	p.Y.Min, p.Y.Max = -.6, float64(len(names))-.4
	c := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(10*vg.Inch, 5*vg.Inch), vgimg.UseDPI(120))}
	page := draw.New(c)
	const keyHeight = 24
	picture.Key(draw.Crop(page, 20, 0, 0, keyHeight-page.Max.Y), []picture.Named{{Name: "median", Stroke: median}, {Name: "goal", Stroke: goal}})
	p.Draw(draw.Crop(page, 8, -14, keyHeight, -8))
	return picture.Write(c, file)
}
