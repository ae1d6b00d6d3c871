// Package top is the live view of an agent in a terminal: a line for each
// target with what its limit, its units in flight and its service time were
// lately, and all about one of them on request.
package top

import (
	"context"
	"time"

	tea "charm.land/bubbletea/v2"

	"headgate/pkg/explain"
	"headgate/pkg/status"
)

// Every is how often an agent is asked.
const Every = time.Second

// Source is where a [Model] gets what it shows.
type Source interface {
	Status(context.Context) (*status.Status, error)
	Explain(ctx context.Context, scope string, port uint16) (*explain.Explanation, error)
}

// key is what a target is known by.
type key struct {
	scope string
	port  uint16
}

func keyOf(t *status.Target) key { return key{t.Scope, t.Port} }

// Model is the state of the view. It is a [tea.Model].
type Model struct {
	ctx    context.Context
	source Source
	clock  func() time.Time

	// ASCII draws charts of characters that every terminal has.
	ASCII bool

	width, height int
	now           time.Time
	last          *status.Status // nil: none yet
	failure       error          // of the last attempt
	past          map[key]*history
	paused        bool

	order    int  // index into columns
	reversed bool // the other way round
	filter   string
	typing   bool // what is typed goes into the filter
	help     bool

	selected    key
	detail      bool
	explanation *explain.Explanation // of the selected target; nil: none yet
	scroll      int                  // lines of the detail above the screen
}

// New returns the view of a source. clock is [time.Now].
func New(ctx context.Context, s Source, clock func() time.Time) *Model {
	return &Model{ctx: ctx, source: s, clock: clock, width: 80, height: 24, past: make(map[key]*history)}
}

// What was fetched, and the wish to fetch.
type (
	fetched struct {
		status *status.Status
		err    error
		at     time.Time
	}
	explained struct {
		key         key
		explanation *explain.Explanation
	}
	tick struct{}
)

// Init implements [tea.Model].
func (m *Model) Init() tea.Cmd { return m.fetch }

func (m *Model) fetch() tea.Msg {
	s, err := m.source.Status(m.ctx)
	return fetched{status: s, err: err, at: m.clock()}
}

func (m *Model) explain() tea.Msg {
	k := m.selected
	e, err := m.source.Explain(m.ctx, k.scope, k.port)
	if err != nil {
		e = nil // the status says what is wrong
	}
	return explained{key: k, explanation: e}
}

// Update implements [tea.Model].
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tick:
		return m, m.fetch
	case fetched:
		m.take(msg)
		next := tea.Tick(Every, func(time.Time) tea.Msg { return tick{} })
		if m.detail && msg.err == nil && !m.paused {
			return m, tea.Batch(next, m.explain)
		}
		return m, next
	case explained:
		if msg.key == m.selected && !m.paused {
			m.explanation = msg.explanation
		}
	case tea.KeyPressMsg:
		return m, m.press(msg)
	case tea.PasteMsg:
		if m.typing {
			m.filter += msg.Content
		}
	}
	return m, nil
}

// take takes in what was fetched, unless the view is paused.
func (m *Model) take(f fetched) {
	if m.paused {
		return
	}
	m.now, m.failure = f.at, f.err
	if f.err != nil {
		return
	}
	m.last = f.status
	seen := make(map[key]bool)
	for i := range f.status.Targets {
		t := &f.status.Targets[i]
		k := keyOf(t)
		seen[k] = true
		if m.past[k] == nil {
			m.past[k] = new(history)
		}
		m.past[k].add(f.at, t)
	}
	for k := range m.past {
		if !seen[k] {
			delete(m.past, k)
		}
	}
	m.keepSelection()
}

// keepSelection selects the first target where the selected one is not shown.
func (m *Model) keepSelection() {
	shown := m.shown()
	if len(shown) == 0 {
		return
	}
	for _, t := range shown {
		if keyOf(t) == m.selected {
			return
		}
	}
	if m.detail {
		return // it has gone, and its last numbers stay
	}
	m.selected = keyOf(shown[0])
}

// Run shows the view until the user ends it or ctx does.
func (m *Model) Run(ctx context.Context, options ...tea.ProgramOption) error {
	options = append(options, tea.WithContext(ctx))
	_, err := tea.NewProgram(m, options...).Run()
	if ctx.Err() != nil {
		return nil
	}
	return err
}
