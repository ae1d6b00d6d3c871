// Package picture is what the pictures of results have in common: how lines are
// told apart, and the file.
package picture

import (
	"fmt"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// Colours of Okabe and Ito, which nearly everybody can tell apart.
var (
	Black     = color.RGBA{0x00, 0x00, 0x00, 0xff}
	Grey      = color.RGBA{0x66, 0x66, 0x66, 0xff}
	Orange    = color.RGBA{0xe6, 0x9f, 0x00, 0xff}
	SkyBlue   = color.RGBA{0x56, 0xb4, 0xe9, 0xff}
	Green     = color.RGBA{0x00, 0x9e, 0x73, 0xff}
	Blue      = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	Vermilion = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	Purple    = color.RGBA{0xcc, 0x79, 0xa7, 0xff}
)

// Stroke is how a line is drawn: in a colour, and with dashes and glyphs for
// those who see none.
type Stroke struct {
	Color  color.Color
	Dashes []vg.Length
	Width  vg.Length
	Glyph  draw.GlyphDrawer // nil for none
}

// Line is the stroke's line.
func (s Stroke) Line() draw.LineStyle {
	return draw.LineStyle{Color: s.Color, Width: s.Width, Dashes: s.Dashes}
}

// Points are the stroke's glyphs.
func (s Stroke) Points() draw.GlyphStyle {
	return draw.GlyphStyle{Color: s.Color, Radius: 3, Shape: s.Glyph}
}

// Named is a stroke and what it stands for.
type Named struct {
	Name   string
	Stroke Stroke
}

// Key says at the foot of a canvas what strokes mean, in as few rows as they
// need.
func Key(c draw.Canvas, all []Named) {
	style := draw.TextStyle{Color: Black, Font: font.From(plot.DefaultFont, 12), Handler: plot.DefaultTextHandler}
	const gap, rowHeight = 14, 18
	width := func(n Named) vg.Length { return 28 + style.Width(n.Name) + gap }
	rows := [][]Named{nil}
	x := c.Min.X
	for _, n := range all {
		if x > c.Min.X && x+width(n)-gap > c.Max.X {
			rows, x = append(rows, nil), c.Min.X
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], n)
		x += width(n)
	}
	for i, row := range rows {
		x, y := c.Min.X, c.Min.Y+14+vg.Length(len(rows)-1-i)*rowHeight
		for _, n := range row {
			c.StrokeLine2(n.Stroke.Line(), x, y, x+24, y)
			if n.Stroke.Glyph != nil {
				c.DrawGlyph(n.Stroke.Points(), vg.Point{X: x + 12, Y: y})
			}
			c.FillText(style, vg.Point{X: x + 28, Y: y - 4}, n.Name)
			x += width(n)
		}
	}
}

// Write writes a picture as a file.
func Write(c vgimg.PngCanvas, file string) error {
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
