package top

import (
	"fmt"
	"strings"

	"headgate/pkg/status"
)

// chartHeight is how many lines a chart of the detail has.
const chartHeight = 3

// labelWidth is what stands in front of a chart.
const labelWidth = 19

// detailHeight is how many lines of the detail fit on the screen.
func (m *Model) detailHeight() int { return max(m.height-3, 1) }

func (m *Model) detailView(st styles) []string {
	lines := m.detailLines()
	first := min(m.scroll, max(len(lines)-m.detailHeight(), 0))
	lines = lines[first:min(first+m.detailHeight(), len(lines))]
	for i, line := range lines {
		if strings.HasPrefix(line, "! ") {
			lines[i] = st.warn.Render(line)
		}
	}
	return lines
}

// detailLines is all about the selected target.
func (m *Model) detailLines() []string {
	t, h := m.find(m.selected), m.past[m.selected]
	if t == nil || h == nil {
		return []string{fmt.Sprintf("port %d of %s is not protected any more", m.selected.port, status.Printable(m.selected.scope))}
	}
	st := newStyles()
	width := max(min(m.width-labelWidth-1, kept), 10)
	most := scale(width, h.limit, h.inFlight)
	var lines []string
	for _, c := range []struct {
		name, now, top string
		lines          []string
		render         func(...string) string
	}{
		{"limit", status.Count(float64(t.Limit)), status.Count(most), chart(h.limit, width, chartHeight, most), st.limit.Render},
		{"in flight", status.Count(float64(t.InFlight)), status.Count(most), chart(h.inFlight, width, chartHeight, most), st.flight.Render},
		{"service time", status.Seconds(t.Window.MeanSeconds), status.Seconds(largest(width, h.service)),
			chart(h.service, width, chartHeight, largest(width, h.service)), st.service.Render},
	} {
		for i, line := range c.lines {
			label := ""
			switch i {
			case 0:
				label = fmt.Sprintf("%-12s %6s", c.name, c.top)
			case chartHeight - 1:
				label = fmt.Sprintf("%-12s %6s", "  now "+c.now, "0")
			}
			lines = append(lines, pad(label, labelWidth)+" "+c.render(line))
		}
	}
	lines = append(lines, "")
	if m.explanation == nil {
		return append(lines, "asking the agent why ...")
	}
	var text strings.Builder
	if err := m.explanation.WriteText(&text, max(m.width, 40)); err != nil {
		return append(lines, err.Error())
	}
	return append(lines, strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")...)
}
