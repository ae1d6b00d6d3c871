package history

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"headgate/pkg/status"
)

var begin = time.Date(2026, 5, 1, 3, 0, 0, 0, time.UTC)

func all(string, uint16) bool { return true }

func target(port uint16) status.Target {
	return status.Target{Rule: "shop", Scope: "host", Port: port, Unit: "connection", Signal: "service", Limit: 20}
}

func TestPoints(t *testing.T) {
	s := New()
	tg := target(80)
	tg.AdmittedTotal = 1000 // of a predecessor: no rate
	s.Record(begin, []status.Target{tg})

	tg.AdmittedTotal, tg.InFlight, tg.Waiting = 1540, 12, 3
	tg.RejectedTotal = status.Rejected{Limit: 1, Pace: 2, Source: 3, Flood: 6, HoldTimeout: 4}
	tg.WouldRejectTotal = 5
	tg.Window, tg.BaselineSeconds = status.Window{Samples: 7, MeanSeconds: 0.0203}, 0.0199
	tg.Limit = 57
	s.Changed("host", 80, Change{Time: begin.Add(600 * time.Millisecond), From: 20, To: 57, Reason: "gradient", Words: "a queue stands"})
	s.Changed("host", 81, Change{Reason: "a target that is not known"})
	s.Record(begin.Add(1010*time.Millisecond), []status.Target{tg})

	// Two seconds are missing: the agent was stopped.
	tg.AdmittedTotal += 300
	tg.Limit = 58
	s.Record(begin.Add(4*time.Second), []status.Target{tg})

	got, err := json.Marshal(s.Newest(Points, all))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"time":"2026-05-01T03:00:04Z","second":4,"interval_seconds":1,"targets":[{` +
		`"rule":"shop","port":80,"scope":"host","unit":"connection","signal":"service",` +
		`"limit":[20,57,null,null,58],"in_flight":[0,12,null,null,12],"waiting":[0,3,null,null,3],` +
		`"latency_seconds":[null,0.0203,null,null,0.0203],"baseline_seconds":[null,0.0199,null,null,0.0199],` +
		`"admitted_per_second":[null,534.653,null,null,100.334],` +
		`"rejected_per_second":{"limit":[null,0.990099,null,null,0],"pace":[null,1.9802,null,null,0],` +
		`"source":[null,2.9703,null,null,0],"flood":[null,5.94059,null,null,0],"hold_timeout":[null,3.9604,null,null,0]},` +
		`"would_reject_per_second":[null,4.9505,null,null,0],` +
		`"changes":[{"time":"2026-05-01T03:00:00.6Z","from":20,"to":57,"reason":"gradient","words":"a queue stands"}]}]}`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Error(d)
	}
}

func TestEmpty(t *testing.T) {
	s := New()
	if h := s.Newest(Points, all); h.Second != -1 || len(h.Targets) != 0 {
		t.Errorf("%+v", h)
	}
	s.Record(begin, nil)
	if h := s.Newest(Points, all); h.Second != 0 || len(h.Targets) != 0 {
		t.Errorf("%+v", h)
	}
}

// Whatever the times of the calls, the store answers as one that keeps
// everything and looks only at the last ten minutes.
func TestAgainstFullMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New()
		full, busy := map[int64]int{}, map[int64]int{} // limit and in flight, by second
		inFlight := 0                                  // seldom another one
		at, newest, from := begin, int64(-1), int64(0)
		for i := range rapid.IntRange(1, 400).Draw(t, "calls") {
			if i > 0 {
				at = at.Add(time.Duration(rapid.OneOf(
					rapid.IntRange(800, 1200), rapid.IntRange(0, 400), rapid.IntRange(-2000, 30_000), rapid.Just(700_000),
				).Draw(t, "ms")) * time.Millisecond)
			}
			gone := rapid.IntRange(0, 50).Draw(t, "gone") == 0
			tg := target(80)
			tg.Limit = i
			if rapid.IntRange(0, 50).Draw(t, "in flight changes") == 0 {
				inFlight++
			}
			tg.InFlight = inFlight
			second := int64(math.Round(at.Sub(begin).Seconds()))
			if second > newest {
				if newest = second; gone {
					clear(full)
				} else {
					if len(full) == 0 {
						from = second
					}
					full[second], busy[second] = i, inFlight
				}
			}
			if gone {
				s.Record(at, nil)
			} else {
				s.Record(at, []status.Target{tg})
			}
		}
		points := rapid.IntRange(1, 2*Points).Draw(t, "points")
		h := s.Newest(points, all)
		if h.Second != newest {
			t.Fatalf("second %d, want %d", h.Second, newest)
		}
		if len(full) == 0 {
			if len(h.Targets) != 0 {
				t.Fatalf("a target that is gone: %+v", h.Targets)
			}
			return
		}
		var want, wantBusy Values
		for second := max(from, newest-int64(min(points, Points))+1); second <= newest; second++ {
			v, ok := full[second]
			if !ok {
				want, wantBusy = append(want, unknown), append(wantBusy, unknown)
				continue
			}
			want, wantBusy = append(want, float32(v)), append(wantBusy, float32(busy[second]))
		}
		if d := cmp.Diff(fmt.Sprint(want), fmt.Sprint(h.Targets[0].Limit)); d != "" {
			t.Fatal(d)
		}
		if d := cmp.Diff(fmt.Sprint(wantBusy), fmt.Sprint(h.Targets[0].InFlight)); d != "" {
			t.Fatal(d)
		}
	})
}

func TestChangesAreBounded(t *testing.T) {
	s := New()
	s.Record(begin, []status.Target{target(80)})
	for i := range 3*maxChanges + 1 {
		s.Changed("host", 80, Change{From: i, To: i + 1})
	}
	c := s.Newest(Points, all).Targets[0].Changes
	if len(c) != maxChanges || c[0].From != 2*maxChanges+1 || c[maxChanges-1].To != 3*maxChanges+1 {
		t.Errorf("%+v", c)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	s := New()
	targets := make([]status.Target, MaxTargets+100)
	for i := range targets {
		targets[i] = target(uint16(i))
	}
	at := begin
	record := func() {
		at = at.Add(Interval)
		s.Record(at, targets)
	}
	record()
	if n := len(s.rings); n != MaxTargets {
		t.Errorf("%d targets are remembered", n)
	}
	if n := testing.AllocsPerRun(10, record); n != 0 {
		t.Errorf("%v allocations to record a point of each", n)
	}
	for _, r := range s.rings {
		for i := range r.value {
			if r.value[i].each != nil {
				t.Fatalf("series %d of a target that does nothing takes memory for each second", i)
			}
		}
	}
	busy := func() {
		for i := range targets {
			targets[i].Limit++
			targets[i].AdmittedTotal += uint64(targets[i].Limit)
		}
		record()
	}
	busy() // the first values that differ
	if n := testing.AllocsPerRun(10, busy); n != 0 {
		t.Errorf("%v allocations to record a point of each that is busy", n)
	}
	s.Record(at.Add(Interval), targets[:1])
	if n := len(s.rings); n != 1 {
		t.Errorf("%d targets are remembered after all but one went", n)
	}
	if h := s.Newest(1, func(_ string, port uint16) bool { return port == 7 }); len(h.Targets) != 0 {
		t.Errorf("%+v", h)
	}
}

// What a second of a thousand targets costs.
func BenchmarkRecord(b *testing.B) {
	s, targets, at := New(), make([]status.Target, MaxTargets), begin
	for i := range targets {
		targets[i] = target(uint16(i))
	}
	b.ReportAllocs()
	for b.Loop() {
		at = at.Add(Interval)
		s.Record(at, targets)
	}
}
