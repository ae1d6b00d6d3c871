package top

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"headgate/pkg/status"
)

// styles are the colours: of the sixteen that every terminal has, and that its
// user has chosen. Nothing is said by colour alone.
type styles struct {
	plain, title, head, picked, faint, warn, bad lipgloss.Style
	limit, flight, service                       lipgloss.Style
}

func newStyles() styles {
	s := lipgloss.NewStyle
	return styles{
		plain:   s(),
		title:   s().Bold(true),
		head:    s().Reverse(true),
		picked:  s().Bold(true),
		faint:   s().Faint(true),
		warn:    s().Foreground(lipgloss.Yellow),
		bad:     s().Foreground(lipgloss.Red),
		limit:   s().Foreground(lipgloss.Cyan),
		flight:  s().Foreground(lipgloss.Green),
		service: s().Foreground(lipgloss.Magenta),
	}
}

// View implements [tea.Model].
func (m *Model) View() tea.View {
	v := tea.NewView(strings.Join(m.Frame(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "headgate top"
	return v
}

// Frame returns the lines of the screen, as many as it is high and none wider
// than it is.
func (m *Model) Frame() []string {
	st := newStyles()
	lines := m.top(st)
	switch {
	case m.help:
		lines = append(lines, helpLines...)
	case m.last == nil:
		if m.failure == nil {
			lines = append(lines, "waiting for the agent ...")
		}
	case m.detail:
		lines = append(lines, m.detailView(st)...)
	default:
		lines = append(lines, m.tableView(st, m.height-len(lines)-1)...)
	}
	foot := m.foot()
	if len(lines) > m.height-1 {
		lines = lines[:max(m.height-1, 0)]
	}
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines, st.faint.Render(foot))
	for i, line := range lines {
		lines[i] = ansi.Truncate(line, m.width, "")
		if m.ASCII {
			lines[i] = plainBlocks.Replace(lines[i])
		}
	}
	return lines
}

// plainBlocks stand for the blocks of charts, the higher the darker.
var plainBlocks = strings.NewReplacer("▁", ".", "▂", ":", "▃", "-", "▄", "=", "▅", "+", "▆", "*", "▇", "#", "█", "#")

// top is the state of the agent, and what is wrong.
func (m *Model) top(st styles) []string {
	title := "headgate"
	if m.last != nil {
		title = fmt.Sprintf("headgate %s  mode %s  lease %s  targets %d", status.Printable(m.last.Version), m.last.Mode,
			status.Seconds(m.last.LeaseSeconds), len(m.last.Targets))
	}
	right := ""
	if !m.now.IsZero() {
		right = m.now.Format("15:04:05")
	}
	if m.paused {
		right = "paused " + right
	}
	gap := max(m.width-ansi.StringWidth(title)-ansi.StringWidth(right), 1)
	lines := []string{st.title.Render(title) + strings.Repeat(" ", gap) + right}
	if m.failure != nil {
		for _, line := range strings.Split(ansi.Wrap("! "+status.Printable(m.failure.Error()), m.width, ""), "\n") {
			lines = append(lines, st.bad.Render(line))
		}
	}
	if m.last != nil && !m.detail {
		wrong := m.last.Wrong()
		for i, w := range wrong {
			if i == 2 && len(wrong) > 3 {
				lines = append(lines, st.warn.Render(fmt.Sprintf("! and %d more: headgate status", len(wrong)-i)))
				break
			}
			lines = append(lines, st.warn.Render("! "+status.Printable(w)))
		}
	}
	return append(lines, "")
}

func (m *Model) tableView(st styles, height int) []string {
	w := m.widths()
	lines := []string{st.head.Render(pad(m.header(w), m.width))}
	shown := m.shown()
	if len(shown) == 0 {
		return append(lines, "no target matches")
	}
	at := 0
	for i, t := range shown {
		if keyOf(t) == m.selected {
			at = i
		}
	}
	room := max(height-1, 1)
	first := min(max(at-room/2, 0), max(len(shown)-room, 0))
	for _, t := range shown[first:min(first+room, len(shown))] {
		row := m.row(t, w, st)
		if keyOf(t) == m.selected {
			row = st.picked.Render(">") + row
		} else {
			row = " " + row
		}
		lines = append(lines, row)
	}
	return lines
}

// foot says which keys do what.
func (m *Model) foot() string {
	switch {
	case m.typing:
		return "filter: " + status.Printable(m.filter) + "_   enter: done   esc: none"
	case m.help:
		return "esc: back   q: quit"
	case m.detail:
		return "up/down: scroll   esc: back   p: pause   q: quit"
	}
	foot := fmt.Sprintf("sort: %s   s/r: sort, reverse   /: filter   enter: detail   ?: help   q: quit", columns[m.order].name)
	if m.filter != "" {
		foot = fmt.Sprintf("filter: %s   ", status.Printable(m.filter)) + foot
	}
	return foot
}

var helpLines = []string{
	"up, down, page up, page down   select a target",
	"enter                          all about it, and why its limit is what it is",
	"esc                            back; in the table: no filter",
	"s, S                           sort by the next column, by the one before",
	"r                              the other way round",
	"/                              show only targets with this in name, port, scope,",
	"                               unit, mode or algorithm",
	"p                              pause",
	"q                              quit",
	"",
	"LIMIT    the most in flight, now and in the last minute",
	"FLIGHT   what was in flight, at the same scale: limits far above it are cut off",
	"TIME     mean time of a request, now and lately, at a scale of its own",
	"DONE     finished a second",
	"REFUSED  refused a second; in brackets: would have been, for the rule observes",
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(width-ansi.StringWidth(s), 0))
}

func shorten(s string, width int) string { return ansi.Truncate(s, width, "..") }
