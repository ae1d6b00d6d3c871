package status

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// contract is the documented form of status -o json, field by field.
const contract = `{"version": "...", "mode": "enforce", "lease_seconds": 3, "lease_age_seconds": 0.1, "capabilities": {"tcx": true}, "problems": [],
 "targets": [{"rule": "shop", "port": 8080, "scope": "host", "unit": "connection", "mode": "enforce", "listening": true,
   "algorithm": "guarded", "limit": 57, "at_floor": false, "in_flight": 12, "waiting": 0, "pending": 0, "flood": true, "connections": 0,
   "signal": "service", "window": {"samples": 110, "mean_seconds": 0.0203, "p50_seconds": 0.02, "p99_seconds": 0.031},
   "baseline_seconds": 0.0199, "gradient": 0.98, "throughput_per_second": 540.2,
   "tcp_rtt_seconds": {"handshake_p50": 0.0001, "min": 0.00001, "p50": 0.0002},
   "hold": {"max_wait_seconds": 0.01, "max_waiting": 1000, "order": "fifo"},
   "pace": {"rate_per_second": 0, "max_wait_seconds": 0},
   "accept_queue": {"length": 0, "max": 511, "overflows_total": 0},
   "admitted_total": 10, "rejected_total": {"limit": 3, "pace": 0, "source": 0, "flood": 0, "hold_timeout": 0},
   "held_total": 0, "bypassed_total": 0, "exempted_total": 0, "would_reject_total": 0, "finished_total": 10, "trimmed_total": 0,
   "loopback": "counted",
   "classes": [{"name": "partners", "share": 0.3, "limit": 17, "in_flight": 4, "waiting": 0, "rejected_total": 2}],
   "last_change": {"reason": "gradient", "seconds_ago": 0.4},
   "recount": {"in_flight": 1, "waiting": 0, "pending": 0, "connections": 0, "idle": 0, "seconds_ago": 12.5}}],
 "troubles": [{"hook": "state", "trouble": "hidden"}], "shadowed": [{"hook": "sk_lookup", "at": "host", "id": 7, "name": "tubular"}]}`

func TestJSON(t *testing.T) {
	d := json.NewDecoder(strings.NewReader(contract))
	d.DisallowUnknownFields()
	var s Status
	if err := d.Decode(&s); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := json.Unmarshal([]byte(contract), &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(again, &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func table(t testing.TB, s Status) string {
	t.Helper()
	var b bytes.Buffer
	if err := s.WriteTable(&b, Width); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTable(t *testing.T) {
	s := Status{
		Version: "1.2.3", Mode: "enforce", LeaseSeconds: 3,
		Capabilities: map[string]bool{"tcx": false, "sk_lookup": true, "cgroup_skb": false},
		Targets: []Target{
			{
				Rule: "shop", Port: 8080, Scope: "host", Unit: "connection", Mode: "enforce", Listening: true, Limit: 57, InFlight: 12,
				Window: Window{MeanSeconds: 0.0203}, BaselineSeconds: 0.0199, ThroughputPerSecond: 540.2,
				RejectedTotal: Rejected{Limit: 3, Pace: 1},
			},
			{
				Rule: "a-rule-with-quite-a-long-name", Port: 443, Scope: "netns:customer-blue", Unit: "request", Mode: "observe",
				Listening: true, Limit: 65536, InFlight: 40000, Window: Window{MeanSeconds: 25e-6}, ThroughputPerSecond: 123456,
				WouldRejectTotal: 7_200_000,
			},
		},
	}
	want := `headgate 1.2.3, mode by target, lease 3s
! observe: nobody is refused on a-rule-with-quite-a-long-name:443
not on this kernel: cgroup_skb, tcx

RULE    PORT SCOPE   UNIT MODE      IN FLIGHT LATENCY BASELINE   DONE   REJECTED
shop    8080 host    conn enforce       12/57  20.3ms   19.9ms  540/s          4
a-rul..  443 netns.. req  observe 40000/65536    25us        - 123k/s would 7.2M
`
	if d := cmp.Diff(want, table(t, s)); d != "" {
		t.Error(d)
	}

	s.Capabilities = nil
	s.Problems = []string{"the lease has not been renewed for 7s: every gate is open"}
	s.Reload = &Reload{SecondsAgo: 65.2, Error: "/etc/h.yaml:3:5: unknown key\n  3 | prot: 8080"}
	s.Targets[1] = Target{
		Rule: "backend", Port: 9000, Scope: "host", Unit: "connection", Mode: "enforce", Limit: 10, InFlight: 10, Waiting: 90,
		Hold: Hold{MaxWaiting: 1000}, RejectedTotal: Rejected{Limit: 1, Pace: 2, HoldTimeout: 4}, AtFloor: true,
	}
	want = `headgate 1.2.3, mode enforce, lease 3s
! not protected: the lease has not been renewed for 7s: every gate is open
! not reloaded 1m5s ago, the configuration before stays in force: /etc/h.yaml:3:5: unknown key ...
! nobody listens on backend:9000
! at the smallest limit and still slow: backend:9000

RULE    PORT SCOPE UNIT MODE    IN FLIGHT WAIT LATENCY BASELINE  DONE REJECTED
shop    8080 host  conn enforce     12/57    -  20.3ms   19.9ms 540/s        4
backend 9000 host  conn enforce     10/10   90       -        -   0/s        7
`
	if d := cmp.Diff(want, table(t, s)); d != "" {
		t.Error(d)
	}
	if got := table(t, Status{Version: "1", Mode: "observe"}); got != "headgate 1, mode observe, lease -\nno targets\n" {
		t.Error(got)
	}
	s.Reload = &Reload{Successful: true}
	for i := range 6 {
		s.Targets = append(s.Targets, Target{Rule: "r", Port: uint16(i + 1), Mode: "observe", Listening: true})
	}
	if got := s.Wrong(); got[3] != "observe: nobody is refused on r:1, r:2, r:3 and 3 more" {
		t.Errorf("%q", got)
	}
	s.Targets = s.Targets[2:]
	if got := s.Wrong(); got[1] != "observe: nobody is refused" {
		t.Errorf("%q", got)
	}
}

func TestTableSaysWhatIsByHand(t *testing.T) {
	three := 3
	s := Status{Version: "1", Mode: "observe", Targets: []Target{
		{Rule: "shop", Port: 8080, Mode: "enforce", Listening: true, Override: &Override{Limit: &three, Mode: "enforce"}},
		{Rule: "api", Port: 81, Mode: "enforce", Listening: true, Override: &Override{Mode: "enforce", NotExempt: []string{"::1/128"}}},
	}}
	text := table(t, s)
	for _, want := range []string{"headgate 1, mode enforce, ", "\nset by hand: shop:8080 (limit 3, enforce), api:81 (enforce, who is exempt)\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table does not say %q:\n%s", want, text)
		}
	}
	s.Targets[1].Override, s.Targets[1].Mode = nil, "observe"
	if text := table(t, s); !strings.Contains(text, "mode by target") || !strings.Contains(text, "set by hand: shop:8080 (limit 3, enforce)\n") {
		t.Error(text)
	}
	s.Targets[0].Override = nil
	if text := table(t, s); strings.Contains(text, "hand") {
		t.Error(text)
	}
}

func TestTableSaysWhoIsApart(t *testing.T) {
	s := Status{Targets: []Target{
		{Rule: "shop", Port: 8080, Listening: true, Loopback: "exempt", Classes: []Class{
			{Name: "partners", Limit: 17, InFlight: 4}, {Name: "others", Limit: 40, InFlight: 8},
		}},
		{Rule: "api", Port: 81, Listening: true, Loopback: "counted"},
	}}
	text := table(t, s)
	for _, want := range []string{
		"loopback: exempt on shop:8080\n",
		"classes of shop:8080, in flight and guaranteed: partners 4/17, others 8/40\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table does not say %q:\n%s", want, text)
		}
	}
}

// Whatever an agent reports, the table keeps to its width and its columns.
func TestTableWidth(t *testing.T) {
	number := rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 1e6), rapid.Just(math.NaN()), rapid.Just(math.Inf(1)))
	target := rapid.Custom(func(t *rapid.T) Target {
		return Target{
			Rule: rapid.String().Draw(t, "rule"), Port: rapid.Uint16().Draw(t, "port"),
			Scope: rapid.String().Draw(t, "scope"), Mode: rapid.SampledFrom([]string{"enforce", "observe"}).Draw(t, "mode"),
			Unit: rapid.SampledFrom([]string{"connection", "request"}).Draw(t, "unit"), Listening: rapid.Bool().Draw(t, "listening"),
			Limit: rapid.IntRange(-1, 1<<30).Draw(t, "limit"), InFlight: rapid.IntRange(-1, 1<<30).Draw(t, "in flight"),
			Waiting: rapid.IntRange(-1, 1<<30).Draw(t, "waiting"), Hold: Hold{MaxWaiting: rapid.IntRange(0, 1).Draw(t, "holds")},
			Window: Window{MeanSeconds: number.Draw(t, "mean")}, BaselineSeconds: number.Draw(t, "baseline"),
			ThroughputPerSecond: number.Draw(t, "rate"), WouldRejectTotal: rapid.Uint64().Draw(t, "would"),
			RejectedTotal: Rejected{Limit: rapid.Uint64().Draw(t, "rejected")},
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		s := Status{Version: "1", Mode: "enforce", Targets: rapid.SliceOfN(target, 1, 5).Draw(rt, "targets")}
		lines := strings.Split(strings.TrimSuffix(table(t, s), "\n"), "\n")
		rows := lines[slices.Index(lines, "")+1:]
		if len(rows) != len(s.Targets)+1 {
			rt.Fatalf("%d rows for %d targets", len(rows)-1, len(s.Targets))
		}
		for _, row := range rows {
			if n := utf8.RuneCountInString(row); n > Width || n != utf8.RuneCountInString(rows[0]) {
				rt.Errorf("%d wide: %q", n, row)
			}
		}
	})
}

// Every cell as wide as it can be.
func TestWidestTable(t *testing.T) {
	widest := Target{
		Rule: strings.Repeat("r", 63), Port: 65535, Scope: "netns:" + strings.Repeat("n", 250), Unit: "connection", Mode: "observe",
		Limit: 99999, InFlight: 99999, Waiting: 16384, Hold: Hold{MaxWaiting: 16384},
		Window: Window{MeanSeconds: 12345}, BaselineSeconds: 12345, ThroughputPerSecond: 99999, WouldRejectTotal: 1234567,
	}
	lines := strings.Split(table(t, Status{Targets: []Target{widest}}), "\n")
	if n := len(lines[len(lines)-2]); n != Width {
		t.Errorf("%d wide: %q", n, lines)
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{
		0: "-", -1: "-", math.Inf(1): "-", 64e-9: "64ns", 999.6e-9: "1us", 25e-6: "25us", 1.5e-3: "1.5ms",
		0.0203: "20.3ms", 0.9994: "999ms", 0.9996: "1s", 12.34: "12.3s", 3600: "3600s", 1e6: ">1d",
	} {
		if got := Seconds(v); got != want {
			t.Errorf("Seconds(%v) is %s, want %s", v, got, want)
		}
	}
	for v, want := range map[float64]string{
		0: "0", 0.5: "0.5", 3: "3", 99.96: "100", 540.2: "540", 65536: "65536", 99999.7: "100k",
		123456: "123k", 999600: "1M", 7.2e6: "7.2M", 1.8e19: ">1P", math.NaN(): "-",
	} {
		if got := Count(v); got != want {
			t.Errorf("Count(%v) is %s, want %s", v, got, want)
		}
	}
}

// What is piped into something is not cut off.
func TestTableOfAnyWidth(t *testing.T) {
	scope := "cgroup:system.slice/" + strings.Repeat("x", 100) + ".service"
	s := Status{Targets: []Target{{Rule: "shop", Port: 8080, Scope: scope}}}
	var b bytes.Buffer
	if err := s.WriteTable(&b, 0); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), scope) {
		t.Errorf("the scope is cut off:\n%s", &b)
	}
}
