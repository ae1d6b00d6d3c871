package main

import (
	"errors"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"headgate/bench/internal/picture"
)

// strokes are in the order of the posts.
var strokes = []picture.Stroke{
	{Color: picture.Grey, Width: 1.5},
	{Color: picture.Orange, Dashes: []vg.Length{6, 3}, Width: 1.5},
	{Color: picture.Purple, Dashes: []vg.Length{2, 2}, Width: 1.5},
	{Color: picture.Green, Dashes: []vg.Length{8, 2, 2, 2}, Width: 1.5},
	{Color: picture.Blue, Width: 2.5},
	{Color: picture.Vermilion, Width: 2.5},
}

// panel is one plot; its key stands above it, where no line is.
type panel struct {
	*plot.Plot
	key []picture.Named
}

const keyHeight = 26

// drawPicture draws goodput with all gates, and what headgate's limit did.
func drawPicture(r Report, file string) error {
	goodput := newPanel("A sale begins and the database stalls: answers within a second", "requests/s")
	waits := newPanel("What the answered waited, p99", "s")
	limit := newPanel("", "connections")
	for i, g := range r.Gates {
		stroke := strokes[i%len(strokes)]
		var good, p99 plotter.XYs
		for at, s := range g.Seconds {
			good = append(good, plotter.XY{X: float64(at) + .5, Y: float64(s.Good)})
			if s.P99 > 0 {
				p99 = append(p99, plotter.XY{X: float64(at) + .5, Y: s.P99})
			}
		}
		goodput.key = append(goodput.key, picture.Named{Name: g.Name, Stroke: stroke})
		if err := errors.Join(goodput.add(stroke, good), waits.add(stroke, p99)); err != nil {
			return err
		}
		if len(g.Looks) == 0 || len(limit.key) > 0 {
			continue
		}
		var limits, inside plotter.XYs
		for _, l := range g.Looks {
			limits = append(limits, plotter.XY{X: l.At, Y: float64(l.Limit)})
			inside = append(inside, plotter.XY{X: l.At, Y: float64(l.InFlight)})
		}
		limit.Title.Text = g.Name + ": the limit and what is in flight"
		limit.key = []picture.Named{{Name: "limit", Stroke: stroke}, {Name: "in flight", Stroke: strokes[0]}}
		if err := errors.Join(limit.add(stroke, limits), limit.add(strokes[0], inside)); err != nil {
			return err
		}
	}
	c := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(10*vg.Inch, 9*vg.Inch), vgimg.UseDPI(120))}
	page := draw.New(c)
	panels := []panel{goodput, waits, limit}
	plots := make([][]*plot.Plot, len(panels))
	for i, p := range panels {
		p.sale(r.Story)
		plots[i] = []*plot.Plot{p.Plot}
	}
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadY: 14, PadTop: 8, PadBottom: 8, PadLeft: 8, PadRight: 14}
	for i, canvases := range plot.Align(plots, tiles, page) {
		panels[i].draw(canvases[0])
	}
	return picture.Write(c, file)
}

func newPanel(title, y string) panel {
	p := panel{Plot: plot.New()}
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "s", y
	p.BackgroundColor = color.White
	p.Y.Min = 0
	p.Add(plotter.NewGrid())
	return p
}

// add adds a line, unless it has no points.
func (p *panel) add(s picture.Stroke, xy plotter.XYs) error {
	if len(xy) == 0 {
		return nil
	}
	line, err := plotter.NewLine(xy)
	if err != nil {
		return err
	}
	line.LineStyle = s.Line()
	p.Add(line)
	return nil
}

func (p *panel) draw(c draw.Canvas) {
	if len(p.key) > 0 {
		picture.Key(draw.Crop(c, 30, 0, c.Max.Y-c.Min.Y-keyHeight, 0), p.key)
		c = draw.Crop(c, 0, 0, 0, -keyHeight)
	}
	p.Draw(c)
}

// sale marks the beginning and the end of the sale.
func (p *panel) sale(s Story) {
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
