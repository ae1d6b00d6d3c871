package top

import (
	tea "charm.land/bubbletea/v2"
)

// press acts on a key.
func (m *Model) press(k tea.KeyPressMsg) tea.Cmd {
	if m.typing {
		m.typed(k)
		return nil
	}
	switch k.String() {
	case "q", "ctrl+c":
		return tea.Quit
	case "esc":
		switch {
		case m.help:
			m.help = false
		case m.detail:
			m.leave()
		default:
			m.filter = ""
		}
	case "?", "h":
		m.help = !m.help
	case "p", "space":
		m.paused = !m.paused
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(+1)
	case "pgup":
		m.move(-m.page())
	case "pgdown":
		m.move(+m.page())
	case "home", "g":
		m.move(-1 << 30)
	case "end", "G":
		m.move(+1 << 30)
	case "left", "backspace":
		m.leave()
	case "enter", "right":
		return m.enter()
	case "s":
		m.order = (m.order + 1) % len(columns)
	case "S":
		m.order = (m.order + len(columns) - 1) % len(columns)
	case "r":
		m.reversed = !m.reversed
	case "/":
		if !m.detail {
			m.typing = true
		}
	}
	return nil
}

// typed edits the filter.
func (m *Model) typed(k tea.KeyPressMsg) {
	switch k.String() {
	case "enter":
		m.typing = false
	case "esc", "ctrl+c":
		m.typing, m.filter = false, ""
	case "backspace":
		if r := []rune(m.filter); len(r) > 0 {
			m.filter = string(r[:len(r)-1])
		}
	case "ctrl+u":
		m.filter = ""
	default:
		m.filter += k.Text
	}
	m.keepSelection()
}

// page is how many lines a page has.
func (m *Model) page() int { return max(m.height-6, 1) }

// move moves the selection, or scrolls.
func (m *Model) move(by int) {
	if m.detail {
		m.scroll = min(max(m.scroll+by, 0), max(len(m.detailLines())-m.detailHeight(), 0))
		return
	}
	shown := m.shown()
	if len(shown) == 0 {
		return
	}
	at := 0
	for i, t := range shown {
		if keyOf(t) == m.selected {
			at = i
		}
	}
	m.selected = keyOf(shown[min(max(at+by, 0), len(shown)-1)])
}

func (m *Model) enter() tea.Cmd {
	if m.detail || m.find(m.selected) == nil {
		return nil
	}
	m.detail, m.scroll, m.explanation = true, 0, nil
	return m.explain
}

func (m *Model) leave() {
	m.detail = false
	m.keepSelection()
}
