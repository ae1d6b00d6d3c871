package demo

import (
	"fmt"
	"math"
	"strings"
)

// pictureRows is the height of a picture; a row is a factor of two.
const pictureRows = 11

// picture draws in flight as columns and the limit as a line, both on a
// logarithmic scale from 1 to 1024: with headgate off and on they are an order
// of magnitude apart.
func picture(samples []Sample, width int) string {
	if len(samples) == 0 {
		return ""
	}
	columns := min(len(samples), max(10, width-8))
	grid := make([][]rune, pictureRows)
	for row := range grid {
		grid[row] = []rune(strings.Repeat(" ", columns))
	}
	flip := -1
	for c := range columns {
		// The samples of a column, of which the last stands for all.
		s := samples[(c+1)*len(samples)/columns-1]
		for row := range height(s.InFlight) {
			grid[row][c] = '▒'
		}
		if h := height(s.Limit); h > 0 {
			grid[h-1][c] = '━'
		}
		if s.Phase == Enforce && flip < 0 {
			flip = c
		}
	}

	var b strings.Builder
	b.WriteString("in flight ▒ and limit ━\n")
	for row := pictureRows - 1; row >= 0; row-- {
		label := ""
		if row%2 == 0 {
			label = fmt.Sprint(1 << row)
		}
		fmt.Fprintf(&b, "%5s │%s\n", label, strings.TrimRight(string(grid[row]), " "))
	}
	axis := []rune(strings.Repeat("─", columns))
	under := ""
	if flip >= 0 {
		axis[flip] = '┴'
		under = fmt.Sprintf("%*s^ headgate on, %.0f s\n", flip+7, "", samples[flip*len(samples)/columns].Seconds)
	}
	b.WriteString("      └" + string(axis) + "\n" + under)
	return b.String()
}

// height is how many rows n fills: none for 0, one for 1, two for 2 and 3,
// and so on to the top.
func height(n int) int {
	if n <= 0 {
		return 0
	}
	return min(pictureRows, 1+int(math.Log2(float64(n))))
}
