package explain

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"headgate/pkg/controller"
	"headgate/pkg/status"
)

var update = flag.Bool("update", false, "write testdata/*.txt anew")

// service is a server that works on so many requests at once, and makes the
// others wait.
type service struct {
	workers int
	time    time.Duration
	until   func(controller.Algorithm) bool // it goes on until this; nil: no longer than asked
}

// probing says whether an algorithm measures its baseline now.
func probing(a controller.Algorithm) bool {
	for _, t := range a.Terms() {
		if t.Name == "probing" {
			return t.Value == 1
		}
	}
	return false
}

// tick is a window of 100 ms in which so many want to be inside.
func (s *service) tick(now time.Duration, d controller.Decision, wanted int) controller.Tick {
	const window = 100 * time.Millisecond
	inside := min(wanted, d.Limit)
	working := min(inside, s.workers)
	n := uint64(float64(working) * window.Seconds() / s.time.Seconds())
	took := time.Duration(float64(s.time) * float64(max(inside, 1)) / float64(max(working, 1)))
	t := controller.Tick{Now: now, Samples: n, Sum: time.Duration(n) * took, MaxInFlight: inside}
	if wanted > d.Limit {
		t.Refused = uint64(wanted - d.Limit)
	}
	if d.CohortSize > 0 { // those of a probe find no queue before them, below the workers
		t.Cohort = controller.Cohort{Epoch: d.CohortEpoch, Admitted: d.CohortSize, Done: d.CohortSize, Sum: time.Duration(d.CohortSize) * took}
	}
	return t
}

// run lets an algorithm control the service for so many windows, and returns
// what an agent would know then.
func (s *service) run(t *testing.T, algorithm string, p controller.Params, windows int, wanted func(i int) int) Facts {
	t.Helper()
	a, err := controller.New(algorithm, p)
	if err != nil {
		t.Fatal(err)
	}
	var d, before controller.Decision
	last := 0
	var in controller.Tick
	changed, refusedAt, refused, now := 0, 0, uint64(0), time.Duration(0)
	for i := 0; i < windows || s.until != nil && !s.until(a); i++ {
		now = time.Duration(i) * 100 * time.Millisecond
		in = s.tick(now, d, wanted(i))
		before, d = d, a.Decide(in)
		if i > 0 && d.Limit != before.Limit {
			changed = i
		}
		if refused += in.Refused; in.Refused > 0 {
			refusedAt = i
		}
		last = i
	}
	f := Facts{
		Terms: a.Terms(), Base: d.Limit, Listening: true, Timed: true, RefusedPerSecond: 10 * float64(in.Refused),
		Target: status.Target{
			Rule: "shop", Port: 8080, Scope: "host", Unit: "connection", Mode: "enforce", Algorithm: algorithm, Signal: "service",
			Limit: d.Limit, InFlight: in.MaxInFlight, RejectedTotal: status.Rejected{Limit: refused},
			LastChange: status.Change{Reason: string(d.Reason), SecondsAgo: float64(last-changed) / 10},
		},
	}
	if changed == 0 {
		f.Target.LastChange = status.Change{}
	}
	if p.Max != nil {
		f.Max = *p.Max
	}
	if refused > 0 {
		f.LastRefused = &Refused{Client: netip.MustParseAddrPort("192.0.2.7:41732"), Reason: "limit", SecondsAgo: float64(last-refusedAt)/10 + 0.05}
	}
	return f
}

func steadily(n int) func(int) int { return func(int) int { return n } }

func ptr[T any](v T) *T { return &v }

// situations are what an operator asks about at night.
func situations(t *testing.T) map[string]Facts {
	with := func(f Facts, change func(*Facts)) Facts {
		if r := f.LastRefused; r != nil {
			f.LastRefused = ptr(*r)
		}
		change(&f)
		return f
	}
	web := func() *service { return &service{workers: 16, time: 20 * time.Millisecond} }
	probed := web()
	probed.until = probing
	calm := web().run(t, "guarded", controller.Params{}, 300, steadily(8))
	overload := web().run(t, "guarded", controller.Params{}, 600, steadily(400))
	fixed := web().run(t, "fixed", controller.Params{Initial: ptr(10)}, 50, steadily(25))
	return map[string]Facts{
		"guarded-start":    web().run(t, "guarded", controller.Params{}, 1, steadily(0)),
		"guarded-calm":     calm,
		"guarded-burst":    web().run(t, "guarded", controller.Params{Max: ptr(60)}, 300, steadily(15)),
		"guarded-overload": overload,
		"guarded-grows":    web().run(t, "guarded", controller.Params{}, 3, steadily(400)),
		"guarded-probe":    probed.run(t, "guarded", controller.Params{}, 100, steadily(400)),
		"guarded-stall": func() Facts {
			s := web()
			return s.run(t, "guarded", controller.Params{}, 320, func(i int) int {
				if i > 310 {
					s.time = 200 * time.Millisecond
				}
				return 60
			})
		}(),
		"guarded-max":     web().run(t, "guarded", controller.Params{Max: ptr(12), Initial: ptr(10)}, 300, steadily(40)),
		"guarded-warm-up": web().run(t, "guarded", controller.Params{WarmUp: ptr(time.Minute)}, 100, steadily(40)),
		"gradient2":       web().run(t, "gradient2", controller.Params{}, 600, steadily(400)),
		"gradient":        web().run(t, "gradient", controller.Params{}, 600, steadily(400)),
		"vegas":           web().run(t, "vegas", controller.Params{}, 600, steadily(400)),
		"aimd":            web().run(t, "aimd", controller.Params{}, 600, steadily(5)),
		"blog":            web().run(t, "blog", controller.Params{WarmUp: ptr(time.Second)}, 600, steadily(400)),
		"fixed":           fixed,
		"observe": with(overload, func(f *Facts) {
			f.Target.Mode = "observe"
			f.Target.WouldRejectTotal, f.Target.RejectedTotal = f.Target.RejectedTotal.Limit, status.Rejected{}
			f.LastRefused = &Refused{Client: netip.MustParseAddrPort("[2001:db8::7]:41732"), Reason: "limit", SecondsAgo: 4000, LetIn: true}
		}),
		"nobody-listens": with(calm, func(f *Facts) {
			f.Listening, f.Timed, f.Target.InFlight = false, false, 0
		}),
		"lease-stale": with(overload, func(f *Facts) {
			f.Trouble = []string{"the last window failed: read counts: no such file or directory", "the lease has not been renewed for 7.3s: every gate is open"}
		}),
		"paced": with(fixed, func(f *Facts) {
			f.Target.Pace = status.Pace{RatePerSecond: 10, MaxWaitSeconds: 20}
			f.Target.RejectedTotal, f.Target.InFlight, f.RefusedPerSecond = status.Rejected{Pace: 71}, 3, 0
			f.LastRefused.Reason = "pace"
		}),
		"held": with(fixed, func(f *Facts) {
			f.Target.Unit, f.Target.Waiting = "request", 15
			f.Target.Hold = status.Hold{MaxWaitSeconds: 2, MaxWaiting: 1000, Order: "fifo"}
			f.Target.RejectedTotal, f.RefusedPerSecond = status.Rejected{HoldTimeout: 1}, 1
			f.LastRefused.Reason = "hold_timeout"
		}),
		"shared": with(fixed, func(f *Facts) {
			f.Target.ExemptedTotal, f.Target.RejectedTotal = 20, status.Rejected{Limit: 70, Source: 6}
			f.LastRefused.Reason = "source"
			f.Target.Classes = []status.Class{
				{Name: "partners", Share: 0.3, Limit: 3, InFlight: 1, RejectedTotal: 6},
				{Name: "others", Limit: 7, InFlight: 7, RejectedTotal: 70},
			}
		}),
		"by-hand": with(overload, func(f *Facts) {
			f.Override, f.Target.Limit = &Override{Limit: 5, SecondsLeft: 420}, 5
			f.Flood = true
		}),
		"kept-open": with(calm, func(f *Facts) {
			f.Idle, f.Target.Limit, f.Target.InFlight = 30, f.Target.Limit+30, f.Target.InFlight+30
			f.Target.AcceptQueue = status.AcceptQueue{Length: 128, Max: 128}
		}),
	}
}

func TestTexts(t *testing.T) {
	for name, f := range situations(t) {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := New(f).WriteText(&b, status.Width); err != nil {
				t.Fatal(err)
			}
			for _, line := range strings.Split(b.String(), "\n") {
				if n := utf8.RuneCountInString(line); n > status.Width {
					t.Errorf("%d wide: %s", n, line)
				}
			}
			golden := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), b.String()); d != "" {
				t.Error(d)
			}
		})
	}
}

// What has no end has no place in JSON, and lists are lists when they are empty.
func TestJSON(t *testing.T) {
	e := New(Facts{Terms: []controller.Term{{Name: "probe_in_windows", Value: math.Inf(1), Words: "Windows."}, {Name: "gradient", Value: 0.5}}})
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`{"name":"probe_in_windows","value":null,"words":"Windows."}`, `{"name":"gradient","value":0.5,"words":""}`,
		`"why":[`, `"raise":[`, `"last_refused":null`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	if text, err = json.Marshal(New(Facts{Listening: true, Timed: true})); err != nil || !strings.Contains(string(text), `"notes":[]`) {
		t.Errorf("%s, %v", text, err)
	}
}

// The headline, the limit itself, its allowance and what would raise it speak of
// the same numbers.
func TestBurstAllowanceAgrees(t *testing.T) {
	for name, f := range situations(t) {
		terms := make(map[string]float64)
		for _, term := range f.Terms {
			terms[term.Name] = term.Value
		}
		burst, own := int(terms["burst"]), int(math.Round(terms["limit"]))
		e := New(f)
		why, raise := strings.Join(e.Why, " "), strings.Join(e.Raise, " ")
		if burst == 0 {
			if strings.Contains(why+raise, "allowance") {
				t.Errorf("%s: there is no allowance: %s %s", name, why, raise)
			}
			continue
		}
		if own+burst+f.Idle != f.Target.Limit {
			t.Errorf("%s: %d and %d and %d idle ones are not %d", name, own, burst, f.Idle, f.Target.Limit)
		}
		if want := fmt.Sprintf("The limit itself is %d. %d more are an allowance", own, burst); !strings.Contains(why, want) {
			t.Errorf("%s: not said: %s: %s", name, want, why)
		}
		if strings.Contains(raise, "More in flight") && !strings.Contains(raise, fmt.Sprintf("of %d,", own)) {
			t.Errorf("%s: what would raise the limit is not about %d: %s", name, own, raise)
		}
		if strings.Contains(why, "at its maximum") || strings.Contains(raise, "limit.max") {
			t.Errorf("%s: the limit itself, %d, is below its maximum: %s %s", name, own, why, raise)
		}
		if f.Target.LastChange.Reason != string(controller.ReasonBurst) {
			t.Errorf("%s: an allowance is in force, and the reason is %q", name, f.Target.LastChange.Reason)
		}
	}
}
