package top

import (
	"context"
	"errors"
	"flag"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"headgate/pkg/controller"
	"headgate/pkg/explain"
	"headgate/pkg/status"
)

var update = flag.Bool("update", false, "write testdata/*.txt anew")

// service is an agent with three targets that a wave of load goes over.
type service struct {
	second int
	err    error
	empty  bool
}

func (s *service) Status(context.Context) (*status.Status, error) {
	if s.err != nil {
		return nil, s.err
	}
	at := float64(s.second)
	wave := 0.5 + 0.5*math.Sin(at/6)
	st := &status.Status{Version: "1.2.3", Mode: "enforce", LeaseSeconds: 3}
	if s.empty {
		return st, nil
	}
	shop := status.Target{
		Rule: "shop", Port: 8080, Scope: "host", Unit: "connection", Mode: "enforce", Listening: true, Algorithm: "guarded", Signal: "service",
		Limit: 40 + int(20*wave), InFlight: int(60 * wave), Window: status.Window{Samples: 100, MeanSeconds: 0.02 + 0.03*wave},
		BaselineSeconds: 0.02, Gradient: 0.8, ThroughputPerSecond: 800 * wave, RejectedTotal: status.Rejected{Limit: uint64(at * at * 3)},
	}
	db := status.Target{
		Rule: "database-of-the-shop", Port: 5432, Scope: "netns:blue", Unit: "request", Mode: "enforce", Listening: true, Algorithm: "fixed",
		Limit: 10, InFlight: 10, Waiting: 90, Hold: status.Hold{MaxWaiting: 1000, MaxWaitSeconds: 2},
		Window: status.Window{Samples: 100, MeanSeconds: 0.004}, ThroughputPerSecond: 2500,
	}
	signup := status.Target{
		Rule: "sign-up", Port: 8081, Scope: "host", Unit: "connection", Mode: "observe", Listening: s.second < 20, Algorithm: "guarded",
		Limit: 65536, InFlight: int(3 * wave), WouldRejectTotal: uint64(at / 2), ThroughputPerSecond: 0.4,
	}
	st.Targets = []status.Target{shop, db, signup}
	return st, nil
}

func (s *service) Explain(_ context.Context, scope string, port uint16) (*explain.Explanation, error) {
	st, err := s.Status(context.Background())
	if err != nil {
		return nil, err
	}
	for _, t := range st.Targets {
		if t.Scope == scope && t.Port == port {
			f := explain.Facts{Target: t, Base: t.Limit, Listening: true, Timed: true, RefusedPerSecond: 12,
				Terms: []controller.Term{{Name: "limit", Value: float64(t.Limit), Words: "Units that may be in flight."}}}
			f.LastRefused = &explain.Refused{Client: netip.MustParseAddrPort("192.0.2.7:4711"), Reason: "limit", SecondsAgo: 0.2}
			return explain.New(f), nil
		}
	}
	return nil, errors.New("no such target")
}

// run does what a command says, and what comes of it; ticks are not waited for.
func run(m *Model, cmd tea.Cmd) {
	if cmd == nil {
		return
	}
	switch msg := cmd().(type) {
	case tea.BatchMsg:
		// The first is the tick.
		for _, c := range msg[1:] {
			run(m, c)
		}
	default:
		_, next := m.Update(msg)
		if _, again := msg.(fetched); !again {
			run(m, next)
		}
	}
}

// watch lets the view follow the service for so many seconds.
func watch(s *service, seconds int) *Model {
	start := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	m := New(context.Background(), s, func() time.Time { return start.Add(time.Duration(s.second) * time.Second) })
	for range seconds {
		second(m, s)
	}
	return m
}

func second(m *Model, s *service) {
	s.second++
	_, cmd := m.Update(m.fetch())
	if m.detail {
		run(m, m.explain)
	}
	_ = cmd // the tick
}

func press(m *Model, keys ...string) {
	for _, k := range keys {
		msg := tea.KeyPressMsg{}
		switch k {
		case "enter":
			msg.Code = tea.KeyEnter
		case "esc":
			msg.Code = tea.KeyEscape
		case "up":
			msg.Code = tea.KeyUp
		case "down":
			msg.Code = tea.KeyDown
		case "pgdown":
			msg.Code = tea.KeyPgDown
		case "backspace":
			msg.Code = tea.KeyBackspace
		default:
			msg.Code, msg.Text = []rune(k)[0], k
		}
		_, cmd := m.Update(msg)
		run(m, cmd)
	}
}

func TestFrames(t *testing.T) {
	for name, make := range map[string]func() *Model{
		"begin": func() *Model { return watch(&service{}, 0) },
		"table": func() *Model { return watch(&service{}, 45) },
		"problem": func() *Model {
			s := &service{}
			m := watch(s, 15)
			s.err = errors.New("ask http://127.0.0.1:9464 for its status: no agent listens there; is headgate running?")
			second(m, s)
			return m
		},
		"sorted":     func() *Model { m := watch(&service{}, 45); press(m, "s", "s", "s", "r"); return m },
		"filter":     func() *Model { m := watch(&service{}, 45); press(m, "/", "b", "l", "u", "x", "backspace"); return m },
		"nothing":    func() *Model { m := watch(&service{}, 45); press(m, "/", "x", "y", "enter"); return m },
		"detail":     func() *Model { m := watch(&service{}, 45); press(m, "down", "enter"); return m },
		"scrolled":   func() *Model { m := watch(&service{}, 45); press(m, "down", "down", "enter", "pgdown"); return m },
		"help":       func() *Model { m := watch(&service{}, 45); press(m, "?"); return m },
		"paused":     func() *Model { s := &service{}; m := watch(s, 45); press(m, "p"); second(m, s); return m },
		"no-targets": func() *Model { return watch(&service{empty: true}, 2) },
		"ascii":      func() *Model { m := watch(&service{}, 45); m.ASCII = true; return m },
		"wide": func() *Model {
			m := watch(&service{}, 45)
			m.Update(tea.WindowSizeMsg{Width: 140, Height: 12})
			return m
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := make()
			lines := m.Frame()
			for i, line := range lines {
				lines[i] = strings.TrimRight(ansi.Strip(line), " ")
				if n := ansi.StringWidth(line); n > m.width {
					t.Errorf("line %d is %d wide", i, n)
				}
			}
			if len(lines) != m.height {
				t.Errorf("%d lines, want %d", len(lines), m.height)
			}
			got := strings.Join(lines, "\n") + "\n"
			golden := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Error(d)
			}
		})
	}
}

// Whatever is pressed on whatever screen, the frame keeps to it and nothing
// panics.
func TestAnyKeysOnAnyScreen(t *testing.T) {
	keys := []string{"q", "esc", "enter", "up", "down", "pgdown", "backspace", "s", "S", "r", "/", "p", "?", "g", "G", "x", "b", "é"}
	rapid.Check(t, func(t *rapid.T) {
		s := &service{}
		m := watch(s, rapid.IntRange(0, 3).Draw(t, "seconds"))
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				m.Update(tea.WindowSizeMsg{Width: rapid.IntRange(1, 200).Draw(t, "width"), Height: rapid.IntRange(1, 60).Draw(t, "height")})
			case 1:
				s.empty = rapid.Bool().Draw(t, "empty")
				s.err = nil
				if rapid.Bool().Draw(t, "fails") {
					s.err = errors.New("no")
				}
				second(m, s)
			default:
				press(m, rapid.SampledFrom(keys).Draw(t, "key"))
			}
			frame := m.Frame()
			if len(frame) != max(m.height, 1) {
				t.Fatalf("%d lines on a screen of %d", len(frame), m.height)
			}
			for _, line := range frame {
				if ansi.StringWidth(line) > m.width {
					t.Fatalf("%d wide on a screen of %d: %q", ansi.StringWidth(line), m.width, line)
				}
			}
		}
	})
}

func TestSpark(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		width  int
		most   float64
		want   string
	}{
		{nil, 4, 10, "    "},
		{[]float64{0, 5, 10}, 4, 10, "  ▄▇"},
		{[]float64{9, 9, 0.01, 10, 20}, 3, 10, "▁▇▇"},
		{[]float64{math.NaN(), math.Inf(1), -3}, 3, 10, "   "},
		{[]float64{1, 2}, 2, 0, "  "},
	} {
		if got := spark(tt.values, tt.width, tt.most); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.values, got, tt.want)
		}
	}
	if d := cmp.Diff([]string{"  ▄█", "  ██", "▁███"}, chart([]float64{0.01, 8, 20, 24}, 4, 3, 24)); d != "" {
		t.Error(d)
	}
}

// Memory does not grow with time, or with targets that come and go.
func TestHistoryIsBounded(t *testing.T) {
	s := &service{}
	m := watch(s, 5*kept)
	for _, h := range m.past {
		if len(h.limit) != kept || cap(h.limit) > 2*kept {
			t.Errorf("%d kept, room for %d", len(h.limit), cap(h.limit))
		}
	}
	s.empty = true
	second(m, s)
	if len(m.past) != 0 {
		t.Errorf("%d targets that are gone are remembered", len(m.past))
	}
}

func TestRefusedPerSecond(t *testing.T) {
	h, at := new(history), time.Now()
	for i, total := range []uint64{100, 140, 140, 7} {
		h.add(at.Add(time.Duration(2*i)*time.Second), &status.Target{RejectedTotal: status.Rejected{Limit: total}})
		if want := []float64{0, 20, 0, 3.5}[i]; h.refusedPerSecond != want {
			t.Errorf("at %d: %v a second, want %v", i, h.refusedPerSecond, want)
		}
	}
}
