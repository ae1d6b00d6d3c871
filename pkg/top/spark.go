package top

import (
	"math"
	"strings"
)

var blocks = []rune(" ▁▂▃▄▅▆▇█")

// spark draws the newest values of a series in one line: the height is a value's
// share of most. What is not a number is left blank, and what is above 0 is
// never drawn as nothing. Room is left to the line above.
func spark(values []float64, width int, most float64) string {
	return strings.ReplaceAll(chart(values, width, 1, most)[0], "█", "▇")
}

// chart is the same with several lines, the upper first, and no room.
func chart(values []float64, width, height int, most float64) []string {
	if len(values) > width {
		values = values[len(values)-width:]
	}
	lines := make([]string, height)
	steps := len(blocks) - 1
	for row := range lines {
		var b strings.Builder
		b.WriteString(strings.Repeat(" ", max(width-len(values), 0)))
		for _, v := range values {
			filled := 0
			if most > 0 && v > 0 && !math.IsInf(v, 0) {
				filled = max(int(math.Round(v/most*float64(steps*height))), 1)
			}
			above := steps * (height - 1 - row) // in the rows below this one
			b.WriteRune(blocks[min(max(filled-above, 0), steps)])
		}
		lines[row] = b.String()
	}
	return lines
}

// scale is that of limits and what was in flight, the same for both: a limit far
// above what is in flight, as one with an allowance for bursts, is cut off.
func scale(width int, limits, flights []float64) float64 {
	most := largest(width, limits)
	if f := largest(width, flights); f > 0 {
		most = min(most, 2*f)
		most = max(most, f)
	}
	return most
}

// largest returns the largest of the newest values.
func largest(width int, series ...[]float64) float64 {
	most := 0.0
	for _, values := range series {
		if len(values) > width {
			values = values[len(values)-width:]
		}
		for _, v := range values {
			if v > most && !math.IsInf(v, 0) {
				most = v
			}
		}
	}
	return most
}
