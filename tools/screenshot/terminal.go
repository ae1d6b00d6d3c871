package main

import (
	"image/color"
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/vt"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	uv "github.com/charmbracelet/ultraviolet"
)

// The size of a character, and the margin around all of them.
const (
	fontSize   = 10
	cellWidth  = 0.6 * fontSize // of Liberation Mono
	cellHeight = 1.25 * fontSize
	margin     = 8
)

// The sixteen colours differ from terminal to terminal; these differ in
// lightness too, for those who do not see hues.
var (
	ground = color.RGBA{0x16, 0x1b, 0x22, 0xff}
	ink    = color.RGBA{0xe6, 0xed, 0xf3, 0xff}
	ansi16 = map[ansi.BasicColor]color.RGBA{
		ansi.Red: {0xff, 0x7b, 0x72, 0xff}, ansi.Green: {0x56, 0xd3, 0x64, 0xff}, ansi.Yellow: {0xe3, 0xb3, 0x41, 0xff},
		ansi.Magenta: {0xbc, 0x8c, 0xff, 0xff}, ansi.Cyan: {0x39, 0xc5, 0xcf, 0xff},
	}
)

// drawLines draws lines with colours as a terminal does, as a PNG.
func drawLines(out io.Writer, columns int, lines []string) error {
	screen := vt.NewEmulator(columns, len(lines))
	if _, err := io.WriteString(screen, strings.Join(lines, "\r\n")); err != nil {
		return err
	}
	width := vg.Length(float64(columns)*cellWidth + 2*margin)
	height := vg.Length(float64(len(lines))*cellHeight + 2*margin)
	c := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(144), vgimg.UseBackgroundColor(ground))}
	p := painter{Canvas: draw.New(c), height: height}
	for y := range lines {
		for x := range columns {
			if cell := screen.CellAt(x, y); cell != nil {
				p.cell(x, y, cell)
			}
		}
	}
	_, err := c.WriteTo(out)
	return err
}

type painter struct {
	draw.Canvas
	height vg.Length
}

// fill fills a part of a cell, from its lower edge up to a share of its height.
func (p painter) fill(x, y int, share float64, c color.Color) {
	left := vg.Length(margin + float64(x)*cellWidth)
	bottom := p.height - vg.Length(margin+float64(y+1)*cellHeight)
	p.FillPolygon(c, []vg.Point{
		{X: left, Y: bottom}, {X: left + cellWidth, Y: bottom},
		{X: left + cellWidth, Y: bottom + vg.Length(share*cellHeight)}, {X: left, Y: bottom + vg.Length(share*cellHeight)},
	})
}

func (p painter) cell(x, y int, cell *uv.Cell) {
	fore := color.RGBA(ink)
	if basic, ok := cell.Style.Fg.(ansi.BasicColor); ok {
		fore = ansi16[basic]
	}
	if cell.Style.Attrs&uv.AttrFaint != 0 {
		fore = color.RGBA{0x8b, 0x94, 0x9e, 0xff}
	}
	if cell.Style.Attrs&uv.AttrReverse != 0 {
		p.fill(x, y, 1, fore)
		fore = ground
	}
	if cell.Content == "" || cell.Content == " " {
		return
	}
	// The blocks of charts meet one another: no font's do so at every size.
	if i := strings.Index("▁▂▃▄▅▆▇█", cell.Content); i >= 0 {
		p.fill(x, y, float64(i/len("▁")+1)/8, fore)
		return
	}
	style := text.Style{Color: fore, Font: font.Font{Typeface: "Liberation", Variant: "Mono", Size: fontSize}, Handler: plot.DefaultTextHandler}
	if cell.Style.Attrs&uv.AttrBold != 0 {
		style.Font.Weight = 700
	}
	at := vg.Point{
		X: vg.Length(margin + float64(x)*cellWidth),
		Y: p.height - vg.Length(margin+float64(y+1)*cellHeight) + 0.28*fontSize,
	}
	p.FillText(style, at, cell.Content)
}
