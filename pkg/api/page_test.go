package api

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-cmp/cmp"

	"headgate/internal/browser"
	"headgate/pkg/controller"
	"headgate/pkg/events"
	"headgate/pkg/explain"
	"headgate/pkg/history"
	"headgate/pkg/metrics"
	"headgate/pkg/status"
)

// many is an agent with so many targets.
type many struct {
	targets  atomic.Int32
	notReady atomic.Bool
}

func (m *many) Status() status.Status {
	s := status.Status{Version: "1.2.3", Mode: "enforce", LeaseSeconds: 3, Targets: targetsAt(600, int(m.targets.Load()))}
	if len(s.Targets) == 40 {
		s.Reload = &status.Reload{Error: "/etc/headgate/headgate.yaml:3:5: rules[0].prot: unknown key\n  3 |     prot: 8080"}
		s.Troubles = []status.HookTrouble{{Hook: "sockops", Trouble: "it was detached, and could not be attached again: operation not permitted"}}
		s.Shadowed = []status.Shadow{{Hook: "tc_ingress", At: "netns:a-namespace-with-a-long-name, device eth0", ID: 4711, Name: "cil_from_netdev"}}
	}
	return s
}
func (m *many) Snapshot() metrics.Snapshot                          { return metrics.Snapshot{Status: m.Status()} }
func (m *many) Explain(string, uint16) (*explain.Explanation, bool) { return nil, false }
func (m *many) Events() *events.Bus                                 { return nil }

func (m *many) NotReady() []string {
	if m.notReady.Load() {
		return []string{"the lease has not been renewed for 5s: every gate is open"}
	}
	return nil
}

// targetsAt are targets as they are in a second.
func targetsAt(second, n int) []status.Target {
	targets := make([]status.Target, 0, n)
	for i := range n {
		wave := math.Sin(float64(second+40*i) / 60)
		t := status.Target{
			Rule: fmt.Sprintf("rule-%d", i), Port: uint16(8000 + i), Scope: "host", Unit: "connection", Mode: "enforce", Listening: i != 9,
			Algorithm: "guarded", Signal: "service", Limit: 60 + int(30*wave), InFlight: 30 + int(20*wave),
			Window:          status.Window{Samples: 100, MeanSeconds: 0.021 + 0.004*wave, P50Seconds: 0.02, P99Seconds: 0.05},
			BaselineSeconds: 0.0199, Gradient: 0.97,
			TCPRTTSeconds: status.TCPRTT{HandshakeP50: 0.0001, Min: 0.0001, P50: 0.0002},
			AcceptQueue:   status.AcceptQueue{Max: 511},
			AdmittedTotal: uint64(540 * second), FinishedTotal: uint64(540*second - 30),
			LastChange: status.Change{Reason: "gradient", SecondsAgo: 0.1},
		}
		switch i % 5 {
		case 1:
			t.Rule, t.Scope = "a rule with a very long name, as some people like to give them", "netns:a-namespace-with-a-long-name"
			t.RejectedTotal.Limit = uint64(1_200_000 * second)
			t.InFlight = t.Limit
			t.Override = &status.Override{Limit: new(32), ExpiresInSeconds: new(540.0), Mode: "enforce"}
		case 2:
			t.Mode, t.WouldRejectTotal = "observe", uint64(70*second)
		case 3:
			t.Unit, t.Waiting, t.Hold.MaxWaiting, t.HeldTotal = "request", 40, 1000, uint64(9*second)
			t.RejectedTotal.HoldTimeout, t.Connections = uint64(3*second), 100
			t.Pace.RatePerSecond = 550.5
			t.Classes = []status.Class{
				{Name: "partners", Share: 0.3, Limit: 17, InFlight: 4, RejectedTotal: 1_000_000},
				{Name: "others", Limit: 40, InFlight: 8, RejectedTotal: 20_000_000},
			}
		case 4:
			t.Window, t.BaselineSeconds, t.Gradient = status.Window{}, 0, 0
			t.Limit, t.AdmittedTotal, t.InFlight = 60_000, 0, 3
			t.LastChange = status.Change{}
		}
		targets = append(targets, t)
	}
	return targets
}

// showPage serves the page of an agent with so many targets and ten minutes of
// history, and opens it.
func showPage(t *testing.T, n int) (*browser.Tab, *many, *httptest.Server) {
	t.Helper()
	agent, past := &many{}, history.New()
	agent.targets.Store(int32(n))
	for second := range history.Points {
		at := time.Now().Add(time.Duration(second-history.Points+1) * time.Second)
		past.Record(at, targetsAt(second, n))
		past.Changed("host", 8000, history.Change{Time: at, From: second, To: second + 1, Reason: "dither", Words: controller.ReasonDither.Words()})
	}
	server := httptest.NewServer(newHandler(agent, past, nil, slog.New(slog.DiscardHandler)))
	t.Cleanup(server.Close)
	tab := browser.New(t)
	tab.Show(browser.Screen{Width: 1280, Height: 800})
	tab.Open(server.URL + "/")
	tab.Await("document.documentElement.dataset.second")
	return tab, agent, server
}

// A page whose address holds a password shows as well.
func TestPageBehindPassword(t *testing.T) {
	agent := &many{}
	agent.targets.Store(1)
	page := newHandler(agent, history.New(), nil, slog.New(slog.DiscardHandler))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "joan" || password != "secret" {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		page.ServeHTTP(w, r)
	}))
	defer server.Close()
	tab := browser.New(t)
	tab.Open(strings.Replace(server.URL, "//", "//joan:secret@", 1) + "/")
	tab.Await("document.querySelectorAll('.target').length === 1 && document.getElementById('alarm').hidden")
}

// screens are what the page has to fit on.
var screens = map[string]browser.Screen{
	"desktop":     {Width: 1280, Height: 800},
	"dark phone":  {Width: 390, Height: 844, Dark: true, Touch: true, Still: true},
	"small phone": {Width: 320, Height: 568, Touch: true},
}

// faults are what is wrong with how the page looks now: what reaches out of the
// window or of its card, text that is cut off, and text that is hard to tell
// from what is behind it (WCAG 2.2, 1.4.3: a contrast of 4.5).
const faults = `(() => {
	const found = [];
	const wide = document.documentElement.scrollWidth;
	if (wide > innerWidth) found.push('the page is ' + wide + ' wide, the window ' + innerWidth);
	const rgb = (c) => c.match(/[\d.]+/g).map(Number);
	const light = (c) => {
		const [r, g, b] = c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	for (const e of document.querySelectorAll('body *')) {
		const text = [...e.childNodes].filter((n) => n.nodeType === 3 && n.data.trim());
		if (text.length === 0 || !e.checkVisibility() || e.closest('.skip')) continue;
		const range = document.createRange();
		const what = e.tagName + ' "' + e.textContent.trim().slice(0, 40) + '"';
		const frame = (e.closest('svg, .figure, td, th, .target, button') ?? document.body).getBoundingClientRect();
		for (const n of text) {
			range.selectNodeContents(n);
			const box = range.getBoundingClientRect();
			if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2)
				found.push(what + ' reaches out of its frame');
		}
		let behind = e;
		while (behind && (getComputedStyle(behind).backgroundColor.match(/, 0\)|transparent/))) behind = behind.parentElement;
		const style = getComputedStyle(e);
		const front = light(rgb(e.closest('svg') ? style.fill : style.color)), back = light(rgb(getComputedStyle(behind).backgroundColor));
		const contrast = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
		if (contrast < 4.5) found.push(what + ' has a contrast of ' + contrast.toFixed(2));
	}
	for (const e of document.querySelectorAll('section, figure, .figure, summary')) {
		if (e.scrollWidth > e.clientWidth + 1) found.push(e.tagName + ' "' + e.textContent.trim().slice(0, 40) + '" is wider than its place');
	}
	return [...new Set(found)];
})()`

// look fails the test with what is wrong with the page on any screen.
func look(t *testing.T, tab *browser.Tab, state string) {
	t.Helper()
	for name, screen := range screens {
		tab.Show(screen)
		// The charts follow their size in the next frames.
		var found []string
		tab.Eval("new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r))).then(() => "+faults+")", &found)
		for _, f := range found {
			t.Errorf("%s, %s: %s", state, name, f)
		}
	}
	tab.Show(screens["desktop"])
}

// Each control has a name for those who do not see it.
func checkNames(t *testing.T, tab *browser.Tab) {
	t.Helper()
	for _, node := range tab.Accessible() {
		switch node.Role {
		case "button", "link", "searchbox", "slider", "DisclosureTriangle", "table", "heading":
			if node.Name == "" && node.Role != "table" {
				t.Errorf("a %s has no name", node.Role)
			}
		}
	}
}

func TestPageFits(t *testing.T) {
	for _, n := range []int{0, 1, 40} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			tab, agent, server := showPage(t, n)
			look(t, tab, "as it comes")
			checkNames(t, tab)
			switch n {
			case 0:
				tab.Await(`document.body.innerText.includes('protects nothing now')`)
			case 40:
				tab.Await("document.querySelectorAll('.target').length === 40 && !document.querySelector('.target[open]')")
				tab.Await("document.querySelectorAll('#notes li').length === 3 && document.getElementById('notes').innerText.includes('rules[0].prot: unknown key')")
				tab.Await("document.querySelector('[data-is=hand]:not(:empty)').innerText === 'by hand: limit 32 for 9 min, mode enforce'")
				tab.Await("[...document.querySelectorAll('[data-is=state]')].filter((e) => e.innerText === 'nothing listens').length === 1")
				tab.Run(chromedp.Click("#open"))
				tab.Await("document.querySelectorAll('.target[open] .line.limit[d^=M]').length >= 40")
				look(t, tab, "all open")
				tab.Run(chromedp.SendKeys("#filter", "rule-7 8007"))
				tab.Await("document.querySelectorAll('.target:not([hidden])').length === 1")
				tab.Await("document.getElementById('matches').textContent === '1 of 40'")
			}
			agent.targets.Store(3)
			tab.Await("document.querySelectorAll('.target').length === 3 && document.getElementById('notes').hidden")
			for _, url := range tab.Requests() {
				if !strings.HasPrefix(url, server.URL) {
					t.Errorf("the page asks for %s", url)
				}
			}
			for _, trouble := range tab.Trouble() {
				t.Error(trouble)
			}
		})
	}
}

func TestPageWithoutMouse(t *testing.T) {
	tab, _, _ := showPage(t, 1)
	var order []string
	for range 8 {
		tab.Run(chromedp.KeyEvent(kb.Tab))
		var focus string
		tab.Eval("document.activeElement.id || document.activeElement.getAttribute('class') || document.activeElement.tagName.toLowerCase()", &focus)
		order = append(order, focus)
	}
	if d := cmp.Diff([]string{"skip", "pause", "summary", "chart", "chart", "chart", "a", "a"}, order); d != "" {
		t.Error(d)
	}

	// Home reads the oldest point, and an arrow the one after it.
	tab.Run(chromedp.Focus(".chart"), chromedp.KeyEvent(kb.Home), chromedp.KeyEvent(kb.ArrowRight))
	var read, when string
	tab.Eval("document.querySelector('.chart').getAttribute('aria-valuetext')", &read)
	tab.Eval("document.querySelector('.when').textContent", &when)
	var old []string // a point goes with each second that passes
	for second := range 10 {
		st := targetsAt(second, 1)[0]
		old = append(old, fmt.Sprintf("%s: in flight %d, waiting %d, limit %d", when, st.InFlight, st.Waiting, st.Limit))
	}
	if when == "" || !slices.Contains(old, read) {
		t.Errorf("%q is none of the oldest points %q", read, old)
	}
	tab.Run(chromedp.KeyEvent(kb.Escape))
	tab.Await("document.querySelector('.when').textContent === ''")

	tab.Run(chromedp.Focus("summary"), chromedp.KeyEvent(kb.Enter))
	tab.Await("!document.querySelector('.target').open")

	tab.Run(chromedp.Focus("#pause"), chromedp.KeyEvent(kb.Enter))
	tab.Await("document.getElementById('pause').textContent === 'Go on'")
	time.Sleep(200 * time.Millisecond) // what was under way
	tab.Requests()
	time.Sleep(1500 * time.Millisecond)
	if asked := tab.Requests(); len(asked) > 0 {
		t.Errorf("paused, it asks for %v", asked)
	}
}

func TestPageOfAgentInTrouble(t *testing.T) {
	tab, agent, server := showPage(t, 2)
	agent.notReady.Store(true)
	tab.Await("document.getElementById('alarm').textContent.startsWith('Not protecting: the lease has not been renewed')")
	look(t, tab, "not ready")
	agent.notReady.Store(false)
	tab.Await("document.getElementById('alarm').hidden")
	var before, after string
	const drawn = "document.querySelector('.line.admitted').getAttribute('d').slice(0, 4)"
	tab.Eval(drawn, &before)

	address := server.Listener.Addr().String()
	server.CloseClientConnections()
	server.Close()
	tab.Await(`/^No data since \d\d:\d\d:\d\d, for .+. The agent is not there/.test(document.getElementById('alarm').textContent)`)
	tab.Await("document.title === 'headgate: no data' && document.body.dataset.stale")
	look(t, tab, "gone")

	// The next one has no memory, but the page has.
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	past := history.New()
	past.Record(time.Now(), targetsAt(history.Points, 2))
	again := &httptest.Server{Listener: listener, Config: &http.Server{Handler: newHandler(agent, past, nil, slog.New(slog.DiscardHandler))}}
	again.Start()
	defer again.Close()
	tab.Await("document.getElementById('alarm').hidden && !document.body.dataset.stale")
	if tab.Eval(drawn, &after); before != after {
		t.Errorf("the chart begins with %q, and before with %q", after, before)
	}
}

func TestHistory(t *testing.T) {
	past := history.New()
	for second := range 3 {
		past.Record(time.Unix(1_700_000_000+int64(second), 0), targetsAt(second, 4))
	}
	server := httptest.NewServer(newHandler(&many{}, past, nil, slog.New(slog.DiscardHandler)))
	defer server.Close()
	for query, want := range map[string]struct {
		targets, points int
	}{
		"":                  {4, 3},
		"?points=2":         {4, 2},
		"?target=host/8000": {1, 3},
		"?target=host/9":    {0, 0},
		"?target=host/8000&target=netns:a-namespace-with-a-long-name/8001&points=1": {2, 1},
	} {
		resp, body := do(t, "GET", server.URL+historyPath+query)
		var h struct {
			Second  int64
			Targets []struct{ Limit []float64 }
		}
		if err := json.Unmarshal([]byte(body), &h); err != nil || resp.StatusCode != 200 {
			t.Errorf("%s: %s %s: %v", query, resp.Status, body, err)
			continue
		}
		if h.Second != 2 || len(h.Targets) != want.targets || want.targets > 0 && len(h.Targets[0].Limit) != want.points {
			t.Errorf("%s: %s", query, body)
		}
	}
	for query, want := range map[string]string{
		"?points=0":          `points="0": not a number from 1 to 600`,
		"?points=x":          `points="x"`,
		"?points=601":        `points="601"`,
		"?target=8000":       `target="8000": not SCOPE/PORT, such as host/8080`,
		"?target=host/70000": `target="host/70000"`,
		"?target=/80":        `target="/80"`,
		"?after=3":           `unknown parameter "after": there are points and target`,
	} {
		resp, body := do(t, "GET", server.URL+historyPath+query)
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %s %s", query, resp.Status, body)
		}
	}
}
