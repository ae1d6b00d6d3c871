package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/load"
	"headgate/pkg/status"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// idle is a limiter that limits nothing and notes what it is told.
type idle struct {
	mu      sync.Mutex
	calls   []string
	setMode error
}

func (l *idle) note(call string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, call)
}

func (l *idle) SetMode(mode string) error {
	l.note("mode " + mode)
	return l.setMode
}

func (l *idle) Close() error {
	l.note("close")
	return nil
}

func (l *idle) Status() status.Status {
	return status.Status{Targets: []status.Target{{Port: port, Limit: 20, InFlight: 7}}}
}

func (l *idle) start(context.Context, Target) (Limiter, error) {
	l.note("start")
	return l, nil
}

// needRoot skips like lab.ForTest.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 && os.Getenv(lab.RequireRoot) != "1" {
		t.Skip("needs root")
	}
}

func short(start StartFunc) Options {
	return Options{
		Start: start, WarmUp: time.Second, Phase: 4 * time.Second, Settle: time.Second,
	}
}

// A limiter that does nothing leaves a collapse in both phases: the demo's
// load does overload the demo's server, and the server does not save itself.
func TestWithoutALimitGoodputCollapses(t *testing.T) {
	needRoot(t)
	var l idle
	var live bytes.Buffer
	o := short(l.start)
	o.Live = &live
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"start", "mode enforce", "close"}; !slices.Equal(l.calls, want) {
		t.Errorf("calls %q, want %q", l.calls, want)
	}
	for name, s := range map[string]load.Summary{"observe": r.Observe, "enforce": r.Enforce} {
		if s.Goodput() > 0.2*r.CapacityPerSecond {
			t.Errorf("%s: goodput %.0f/s, want a collapse below 20 %% of %.0f/s", name, s.Goodput(), r.CapacityPerSecond)
		}
		if s.Unsent > 0 || s.Offered() < 4.5*r.CapacityPerSecond || s.Offered() > 5.5*r.CapacityPerSecond {
			t.Errorf("%s: offered %.0f/s with %d not sent, want 5 times %.0f/s", name, s.Offered(), s.Unsent, r.CapacityPerSecond)
		}
	}
	// Half the load was carried before.
	if warm := r.Timeline[2]; warm.Phase != "warm-up" || warm.Answered < 0.3*capacity {
		t.Errorf("warm-up: %+v, want at least 0.3 of the capacity answered", warm)
	}
	if lines := strings.Count(live.String(), "\n"); lines < 8 || lines > 10 {
		t.Errorf("%d live lines in 9 s:\n%s", lines, live.String())
	}
}

func TestRunReportsWhatFails(t *testing.T) {
	needRoot(t)
	broken := errors.New("broken")
	_, err := Run(t.Context(), short(func(context.Context, Target) (Limiter, error) { return nil, broken }))
	if !errors.Is(err, broken) {
		t.Errorf("Start fails: %v", err)
	}

	l := idle{setMode: broken}
	o := short(l.start)
	o.WarmUp, o.Phase, o.Settle = 100*time.Millisecond, 2200*time.Millisecond, 100*time.Millisecond
	if _, err := Run(t.Context(), o); !errors.Is(err, broken) || errors.Is(err, context.Canceled) {
		t.Errorf("SetMode fails: %v", err)
	}
	if !slices.Contains(l.calls, "close") {
		t.Error("SetMode fails: the limiter was not closed")
	}
}

// Ctrl-C in the middle; that nothing is left is checked by TestMain.
func TestRunEndsWithItsContext(t *testing.T) {
	needRoot(t)
	for _, server := range []string{"go", "nginx"} {
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		var l idle
		o := short(l.start)
		o.Server = server
		begin := time.Now()
		_, err := Run(ctx, o)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 2*time.Second {
			t.Errorf("%s: %v after %v", server, err, time.Since(begin))
		}
		if !slices.Contains(l.calls, "close") {
			t.Errorf("%s: the limiter was not closed", server)
		}
	}
}

func TestRunWithoutRoot(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("runs as root")
	}
	_, err := Run(t.Context(), short(new(idle).start))
	if !errors.Is(err, ErrNotRoot) || !strings.Contains(err.Error(), "sudo") {
		t.Errorf("Run: %v, want ErrNotRoot, which says what to do", err)
	}
}

func TestOptions(t *testing.T) {
	good := Options{Start: new(idle).start}
	if err := good.setDefaults(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	if total := good.WarmUp + 2*good.Phase; total > 50*time.Second {
		t.Errorf("by default the load takes %v; the demo is to take less than a minute", total)
	}
	for name, change := range map[string]func(*Options){
		"no limiter":        func(o *Options) { o.Start = nil },
		"unknown server":    func(o *Options) { o.Server = "apache" },
		"long settling":     func(o *Options) { o.Settle = time.Minute },
		"no overload":       func(o *Options) { o.Overload = 0.5 },
		"negative warm-up":  func(o *Options) { o.WarmUp = -1 },
		"negative settling": func(o *Options) { o.Settle = -1 },
	} {
		o := Options{Start: new(idle).start}
		change(&o)
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// scripted returns one status after the other.
type scripted struct {
	idle
	statuses []status.Target
}

func (l *scripted) Status() status.Status {
	if len(l.statuses) == 0 {
		return status.Status{}
	}
	t := l.statuses[0]
	l.statuses = l.statuses[1:]
	return status.Status{Targets: []status.Target{t}}
}

func TestSamplesAreRatesOverTheLastSecond(t *testing.T) {
	var offered atomic.Uint64
	var recorder load.Recorder
	limiter := &scripted{}
	for i := range uint64(8) {
		limiter.statuses = append(limiter.statuses, status.Target{
			AdmittedTotal: 100 * i, RejectedTotal: status.Rejected{Limit: 200 * i, Pace: 50 * i},
			WouldRejectTotal: 25 * i, Limit: int(i), InFlight: int(2 * i),
			Window: status.Window{MeanSeconds: 0.02},
		})
	}
	w := &watcher{limiter: limiter, recorder: &recorder, offered: &offered, warmUp: time.Second, flip: 1500 * time.Millisecond}
	var last []Sample
	for i := range 8 {
		last = w.sample(time.Duration(i) * sampleEvery)
		offered.Add(1000)
		recorder.Record(load.Result{Outcome: load.Answered})
	}
	want := Sample{
		Seconds: 1.75, Phase: Enforce, Offered: 4000, Answered: 4, Admitted: 400, Refused: 1000, WouldRefuse: 100,
		Limit: 7, InFlight: 14, ServiceSeconds: 0.02,
	}
	if got := last[7]; got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	var phases []string
	for _, s := range last {
		phases = append(phases, s.Phase)
	}
	if got := strings.Join(phases, " "); got != "warm-up warm-up warm-up warm-up observe observe enforce enforce" {
		t.Errorf("phases %s", got)
	}
	// A limiter without a target, whose counters begin anew, gives no rates.
	if got := w.sample(2 * time.Second)[8]; got.Admitted != 0 || got.Refused != 0 {
		t.Errorf("after the counters began anew: %+v", got)
	}
}

func TestCountedCountsWhatHasBegun(t *testing.T) {
	var n atomic.Uint64
	next := counted(&n, load.Uniform(load.Step{Rate: 10, For: time.Second}))
	begun := uint64(0)
	for {
		if got := n.Load(); got != max(begun, 1)-1 {
			t.Fatalf("%d counted, %d asked for", got, begun)
		}
		if _, ok := next(); !ok {
			break
		}
		begun++
	}
	if n.Load() != begun {
		t.Errorf("%d counted, %d begun", n.Load(), begun)
	}
}

func TestWriteResult(t *testing.T) {
	r := &Result{
		Server: "go", CapacityPerSecond: 800, WithinSeconds: 0.2,
		Observe: load.Summary{Seconds: 10, Counts: load.Counts{Arrived: 40000, TimedOut: 40000}},
		Enforce: load.Summary{
			Seconds: 10, Counts: load.Counts{Arrived: 40000, Answered: 7900, Refused: 32000, TimedOut: 100},
			Good: 7800, P50Seconds: 0.022, P99Seconds: 0.041,
		},
		Timeline: []Sample{{Seconds: 1, Limit: 20, InFlight: 640}},
	}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]string{
		{"offered", "4000", "4000"}, {"goodput (answered within 200 ms)", "0", "780"},
		{"carries", "0 %", "98 %"}, {"refused at once", "0", "3200"}, {"p50", "-", "22 ms"}, {"p99", "-", "41 ms"},
	} {
		if !hasRow(text.String(), want) {
			t.Errorf("no row with %q in\n%s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "│") {
		t.Error("a picture in what is not a terminal")
	}
	if strings.Contains(text.String(), "trusted") {
		t.Error("a warning about requests that were not sent, and all were")
	}
	r.Observe.Unsent = 3
	r.table(&text)
	if !strings.Contains(text.String(), "could not send 3 of") {
		t.Error("no warning about requests that were not sent")
	}

	var data bytes.Buffer
	if err := r.WriteJSON(&data); err != nil {
		t.Fatal(err)
	}
	var back struct {
		Enforce struct {
			Refused int     `json:"refused"`
			P99     float64 `json:"p99_seconds"`
		} `json:"enforce"`
		Timeline []struct {
			InFlight int `json:"in_flight"`
		} `json:"timeline"`
	}
	if err := json.Unmarshal(data.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if back.Enforce.Refused != 32000 || back.Enforce.P99 != 0.041 || len(back.Timeline) != 1 || back.Timeline[0].InFlight != 640 {
		t.Errorf("JSON came back as %+v", back)
	}
}

// hasRow says whether a line holds the parts in order.
func hasRow(text string, parts []string) bool {
	for line := range strings.Lines(text) {
		rest, ok := line, true
		for _, part := range parts {
			if _, rest, ok = strings.Cut(rest, part); !ok {
				break
			}
		}
		if ok {
			return true
		}
	}
	return false
}

func TestSparkline(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   string
	}{{nil, ""}, {[]float64{0, 0}, "  "}, {[]float64{0, 1, 4, 8}, " ▁▄█"}, {[]float64{0.001, 100}, "▁█"}} {
		if got := sparkline(tt.values); got != tt.want {
			t.Errorf("sparkline(%v) = %q, want %q", tt.values, got, tt.want)
		}
	}
}

func TestPicture(t *testing.T) {
	if got := picture(nil, 80); got != "" {
		t.Errorf("nothing: %q", got)
	}
	samples := []Sample{
		{Seconds: 0, Phase: "warm-up", Limit: 20, InFlight: 0},
		{Seconds: 1, Phase: Observe, Limit: 16, InFlight: 5000},
		{Seconds: 2, Phase: Enforce, Limit: 4, InFlight: 8},
	}
	const want = `in flight ▒ and limit ━
 1024 │ ▒
      │ ▒
  256 │ ▒
      │ ▒
   64 │ ▒
      │ ▒
   16 │━━
      │ ▒▒
    4 │ ▒━
      │ ▒▒
    1 │ ▒▒
      └──┴
         ^ headgate on, 2 s
`
	if got := picture(samples, 80); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// However many samples, no line is wider than the terminal.
	for line := range strings.Lines(picture(slices.Repeat(samples, 100), 40)) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 40 && !strings.Contains(line, "headgate on") {
			t.Errorf("%d columns: %q", n, line)
		}
	}
}

func TestPanelFitsItsTerminal(t *testing.T) {
	samples := slices.Repeat([]Sample{{Seconds: 39, Phase: Observe, Offered: 4012, WouldRefuse: 3200, Limit: 60000,
		InFlight: 60000, ServiceSeconds: 1.5}}, 160)
	for _, line := range panel(samples, 80, 40*time.Second) {
		if n := len([]rune(line)); n > 80 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
}
