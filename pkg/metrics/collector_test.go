package metrics

import (
	"bytes"
	"flag"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"pgregory.net/rapid"

	"headgate/pkg/rtt"
	"headgate/pkg/status"
)

var update = flag.Bool("update", false, "write the golden file")

type fixed Snapshot

func (f fixed) Snapshot() Snapshot { return Snapshot(f) }

func snapshot() fixed {
	var window rtt.Histogram
	for _, d := range []time.Duration{10, 100e3, 20e6, 20e6, 21e6, 300e9} {
		window.Record(d)
	}
	var service Histogram
	service.Add(&window)
	service.Add(&window)
	var waits, handover Histogram
	waits.Add(&window)
	handover.Add(&window)
	return fixed{
		Status: status.Status{
			Version:      "1.2.3",
			Capabilities: map[string]bool{"tcx": true, "sk_lookup": false},
			Targets: []status.Target{
				{
					Rule: "shop", Port: 8080, Scope: "host", Unit: "connection", Mode: "enforce",
					Limit: 57, InFlight: 12, Pending: 2, BaselineSeconds: 0.0199, Gradient: 0.98,
					AcceptQueue:   status.AcceptQueue{Length: 3, Max: 511, OverflowsTotal: 1},
					AdmittedTotal: 1 << 40, FinishedTotal: 10, RejectedTotal: status.Rejected{Limit: 3, Source: 9}, ExemptedTotal: 11,
					Classes: []status.Class{
						{Name: "partners", Share: 0.3, Limit: 17, InFlight: 4, RejectedTotal: 2},
						{Name: "others", Limit: 40, InFlight: 8, RejectedTotal: 10},
					},
				},
				{
					Rule: "shop", Port: 8443, Scope: "netns:blue", Unit: "connection", Mode: "observe",
					Limit: 20, WouldRejectTotal: 7,
				},
				{
					Rule: "backend", Port: 9000, Scope: "host", Unit: "request", Mode: "enforce",
					Limit: 10, InFlight: 10, Waiting: 90, Connections: 100,
					Pace:          status.Pace{RatePerSecond: 550.5, MaxWaitSeconds: 2},
					RejectedTotal: status.Rejected{Limit: 1, Pace: 2, HoldTimeout: 4},
					HeldTotal:     1000, BypassedTotal: 5,
				},
			},
		},
		Details: []Detail{
			{Service: &service, TCPRTT: new(Histogram), Windows: map[string]uint64{"changed": 5, "empty": 1}},
			{},
			{Hold: &waits},
		},
		Handover:         &handover,
		LeaseAge:         250 * time.Millisecond,
		Recounts:         3,
		Shadowed:         map[string]int{"sk_lookup": 1},
		ProgramsAttached: map[string]int{"sockops": 1, "sk_lookup": 2},
		MapFull:          map[string]uint64{"pendings": 0, "holds": 6},
		Events:           map[string]uint64{"rejection": 12, "reload": 0},
		EventsLost:       map[string]uint64{"kernel": 3, "reader": 0},
		ReloadFailed:     true,
		Loaded:           time.UnixMilli(1_764_500_000_500),
	}
}

func TestScrape(t *testing.T) {
	families, err := gather(snapshot())
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	enc := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeOpenMetrics))
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			t.Fatal(err)
		}
	}
	got := strings.ReplaceAll(text.String(), runtime.Version(), "GOVERSION")
	const golden = "testdata/scrape.txt"
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
}

func TestLint(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewCollector(snapshot()))
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// Every metric that is documented is scraped, and no other.
func TestReference(t *testing.T) {
	families, err := gather(snapshot())
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, f := range families {
		got = append(got, f.GetName()+" "+strings.ToLower(f.GetType().String()))
	}
	for _, f := range Reference() {
		want = append(want, f.Name+" "+f.Type)
	}
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A status and details that do not belong together, or labels that are no
// text, must neither panic nor report one target's numbers as another's.
func TestOddSnapshots(t *testing.T) {
	s := snapshot()
	s.Details = s.Details[:1]
	if _, err := gather(s); err != nil {
		t.Error(err)
	}
	if _, err := gather(fixed{}); err != nil {
		t.Error(err)
	}
	s.Status.Targets[0].Rule = "\xff"
	if _, err := gather(s); err == nil {
		t.Error("a label that is not UTF-8 goes unnoticed")
	}
}

func gather(s Source) ([]*dto.MetricFamily, error) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewCollector(s))
	return r.Gather()
}

// No bucket holds a sample above its bound; one that is missing from it is
// less than a bucket of rtt.Histogram below.
func TestHistogramBuckets(t *testing.T) {
	desc := prometheus.NewDesc("x_seconds", "x", nil, nil)
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.SliceOf(rapid.OneOf(
			rapid.Int64Range(0, 1e6), rapid.Int64Range(0, 100e9),
		)).Draw(t, "samples")
		var h Histogram
		var w rtt.Histogram
		sum := 0.0
		for i, ns := range samples {
			w.Record(time.Duration(ns))
			sum += float64(ns) / 1e9
			if i%7 == 6 {
				h.Add(&w)
				w = rtt.Histogram{}
			}
		}
		h.Add(&w)
		m, err := h.metric(desc)
		if err != nil {
			t.Fatal(err)
		}
		var out dto.Metric
		if err := m.Write(&out); err != nil {
			t.Fatal(err)
		}
		got := out.GetHistogram()
		if got.GetSampleCount() != uint64(len(samples)) || math.Abs(got.GetSampleSum()-sum) > 1e-6*sum+1e-9 {
			t.Fatalf("count %d, sum %v; want %d, %v", got.GetSampleCount(), got.GetSampleSum(), len(samples), sum)
		}
		for _, b := range got.Bucket {
			var most, least uint64
			for _, ns := range samples {
				if s := float64(ns) / 1e9; s <= b.GetUpperBound() {
					most++
					if s < b.GetUpperBound()*31/32-64e-9 {
						least++
					}
				}
			}
			if n := b.GetCumulativeCount(); n > most || n < least {
				t.Errorf("le %v: %d, want %d to %d", b.GetUpperBound(), n, least, most)
			}
		}
	})
}

func TestNativeIndex(t *testing.T) {
	for v, want := range map[float64]int{1: 0, 1.0001: 1, 2: 8, 0.5: -8, 0.51: -7} {
		if got := nativeIndex(v); got != want {
			t.Errorf("%v: %d, want %d", v, got, want)
		}
	}
}

func BenchmarkGather(b *testing.B) {
	r := NewRegistry(snapshot())
	for b.Loop() {
		if _, err := r.Gather(); err != nil {
			b.Fatal(err)
		}
	}
}

// What dashboards and alerts of others may count on: these names, types and
// labels stay.
func TestContract(t *testing.T) {
	target := []string{"rule", "scope", "port", "unit"}
	and := func(label string) []string { return append(slices.Clone(target), label) }
	got := map[string]Family{}
	for _, f := range Reference() {
		got[f.Name] = f
	}
	for _, want := range []Family{
		{Name: "headgate_limit", Type: "gauge", Labels: target},
		{Name: "headgate_in_flight", Type: "gauge", Labels: target},
		{Name: "headgate_waiting", Type: "gauge", Labels: target},
		{Name: "headgate_admitted_total", Type: "counter", Labels: target},
		{Name: "headgate_rejected_total", Type: "counter", Labels: and("reason")},
		{Name: "headgate_held_total", Type: "counter", Labels: target},
		{Name: "headgate_would_reject_total", Type: "counter", Labels: target},
		{Name: "headgate_exempted_total", Type: "counter", Labels: target},
		{Name: "headgate_service_seconds", Type: "histogram", Labels: target},
		{Name: "headgate_tcp_rtt_seconds", Type: "histogram", Labels: target},
		{Name: "headgate_baseline_seconds", Type: "gauge", Labels: target},
		{Name: "headgate_gradient_ratio", Type: "gauge", Labels: target},
		{Name: "headgate_pace_per_second", Type: "gauge", Labels: target},
		{Name: "headgate_accept_queue_length", Type: "gauge", Labels: target},
		{Name: "headgate_windows_total", Type: "counter", Labels: and("outcome")},
		{Name: "headgate_flood_mode", Type: "gauge", Labels: target},
		{Name: "headgate_recount_drift", Type: "gauge", Labels: target},
		{Name: "headgate_map_full_total", Type: "counter", Labels: []string{"map"}},
		{Name: "headgate_events_lost_total", Type: "counter", Labels: []string{"where"}},
		{Name: "headgate_programs_attached", Type: "gauge", Labels: []string{"hook"}},
		{Name: "headgate_hook_shadowed", Type: "gauge", Labels: []string{"hook"}},
		{Name: "headgate_capability", Type: "gauge", Labels: []string{"name"}},
		{Name: "headgate_lease_age_seconds", Type: "gauge"},
		{Name: "headgate_config_last_reload_successful", Type: "gauge"},
		{Name: "headgate_build_info", Type: "gauge", Labels: []string{"version", "goversion"}},
	} {
		have := got[want.Name]
		have.Help = ""
		if d := cmp.Diff(want, have); d != "" {
			t.Errorf("%s:\n%s", want.Name, d)
		}
	}
}
