package main

import (
	"image/color"
	"math"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Colours that those tell apart too who do not see all hues (Okabe and Ito).
var palette = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff},
	{0x56, 0xb4, 0xe9, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x55, 0x55, 0x55, 0xff}, {0xb8, 0xae, 0x00, 0xff},
}

const padding = 6 // points

// write puts text on a canvas, from the left.
func write(c draw.Canvas, x, y vg.Length, text string, size vg.Length, bold bool) {
	style := plot.New().Title.TextStyle
	style.Font.Size = size
	if bold {
		style.Font.Weight = 3
	}
	style.XAlign, style.YAlign = draw.XLeft, draw.YTop
	c.FillText(style, vg.Point{X: x, Y: y}, text)
}

func heading(c draw.Canvas, text string) {
	write(c, c.Min.X+padding, c.Max.Y-padding, text, 13, true)
}

func number(c draw.Canvas, p *panel, lines []series) {
	text := "no data"
	if len(lines) > 0 {
		text = format(p.FieldConfig.Defaults.Unit, lines[0].points[len(lines[0].points)-1].Y)
	}
	write(c, c.Min.X+padding, c.Max.Y-padding, p.Title, 10, true)
	write(c, c.Min.X+padding, c.Max.Y-26, text, 22, false)
}

func chart(c draw.Canvas, p *panel, lines []series, from, to time.Time) error {
	pl := plot.New()
	pl.Title.Text = p.Title
	pl.Title.TextStyle.Font.Size = 10
	pl.X.Min, pl.X.Max = float64(from.Unix()), float64(to.Unix())
	pl.X.Tick.Marker = plot.TimeTicks{Format: "15:04", Ticker: minutes{}}
	pl.Y.Min, pl.Y.Max = 0, 0
	pl.X.Tick.Label.Font.Size, pl.Y.Tick.Label.Font.Size = 8, 8
	stacked := p.FieldConfig.Defaults.Custom.Stacking.Mode == "normal"
	under := map[float64]float64{}
	for i, s := range lines {
		points := s.points
		if stacked {
			points = make(plotter.XYs, len(s.points))
			for j, xy := range s.points {
				under[xy.X] += xy.Y
				points[j] = plotter.XY{X: xy.X, Y: under[xy.X]}
			}
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		line.Color = colour(i, lines)
		line.Width = vg.Points(1.2)
		if s.dashed {
			line.Dashes = []vg.Length{4, 3}
		}
		pl.Add(line)
		for _, xy := range points {
			pl.Y.Min, pl.Y.Max = min(pl.Y.Min, xy.Y), max(pl.Y.Max, xy.Y)
		}
	}
	if pl.Y.Max == pl.Y.Min {
		pl.Y.Max = 1
	}
	pl.Y.Tick.Marker = axis(p.FieldConfig.Defaults.Unit)
	pl.Add(plotter.NewGrid())
	c = draw.Crop(c, padding, -padding, padding, -padding)
	pl.Draw(draw.Crop(c, 0, 0, legend(c, lines), 0))
	return nil
}

// legend names the lines at the bottom, and returns how high it is.
func legend(c draw.Canvas, lines []series) vg.Length {
	const size, key, between, high = 7, 14, 10, 10
	style := plot.New().Legend.TextStyle
	style.Font.Size = size
	type place struct{ x, row vg.Length }
	var places []place
	var x, row vg.Length
	for _, s := range lines {
		w := key + 3 + style.Width(s.name) + between
		if x > 0 && x+w > c.Max.X-c.Min.X {
			x, row = 0, row+1
		}
		places = append(places, place{x, row})
		x += w
	}
	for i, p := range places {
		left, y := c.Min.X+p.x, c.Min.Y+(row-p.row)*high+size/2
		line := draw.LineStyle{Color: colour(i, lines), Width: vg.Points(1.5)}
		if lines[i].dashed {
			line.Dashes = []vg.Length{4, 3}
		}
		c.StrokeLine2(line, left, y, left+key, y)
		style.YAlign = draw.YCenter
		c.FillText(style, vg.Point{X: left + key + 3, Y: y}, lines[i].name)
	}
	return (row + 1) * high
}

// colour gives a line that others are compared with the colour of its own one:
// both queries list the same targets.
func colour(i int, lines []series) color.Color {
	if lines[i].dashed {
		for _, s := range lines {
			if !s.dashed {
				i--
			}
		}
	}
	return palette[i%len(palette)]
}

// minutes are ticks at every second full minute.
type minutes struct{}

func (minutes) Ticks(lo, hi float64) (ticks []plot.Tick) {
	for at := math.Ceil(lo/120) * 120; at <= hi; at += 120 {
		ticks = append(ticks, plot.Tick{Value: at, Label: "-"})
	}
	return ticks
}

// axis writes the ticks of a unit.
type axis string

func (a axis) Ticks(lo, hi float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(lo, hi)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = format(string(a), ticks[i].Value)
		}
	}
	return ticks
}

// format writes a value in a unit of Grafana's.
func format(unit string, v float64) string {
	short := func(v float64) string {
		if math.Abs(v) >= 1e4 {
			return strconv.FormatFloat(v/1e3, 'g', 3, 64) + "K"
		}
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	switch {
	case unit == "percentunit":
		return short(v*100) + " %"
	case unit == "s" && v != 0 && math.Abs(v) < 1e-3:
		return short(v*1e6) + " µs"
	case unit == "s" && v != 0 && math.Abs(v) < 1:
		return short(v*1e3) + " ms"
	case unit == "s":
		return short(v) + " s"
	case unit == "ops":
		return short(v) + "/s"
	}
	return short(v)
}
