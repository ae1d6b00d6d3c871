package pace

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

type golden struct {
	Params struct {
		Count                   float64
		MaxQueueingTimeMs       int64
		StatDurationMs          int64
		CurrentUsesNanos        bool
		CurrentConstructorError string
		WarmUpPeriodSec         int64
		ColdFactor              int
		TimeoutMs               int64
		WarningToken, MaxToken  int64
		Slope                   float64
	}
	Columns []string
	Steps   [][]*int64
}

// goldens returns the files that match, by name.
func goldens(t *testing.T, pattern string) map[string]*golden {
	t.Helper()
	paths, _ := filepath.Glob(filepath.Join("testdata/golden", pattern))
	if len(paths) == 0 {
		t.Fatalf("no golden files %s", pattern)
	}
	all := map[string]*golden{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		g := new(golden)
		if err := json.Unmarshal(text, g); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all[strings.TrimSuffix(filepath.Base(path), ".json")] = g
	}
	return all
}

// check runs the steps and compares the columns that got returns.
func (g *golden) check(t *testing.T, step func(in map[string]int64) map[string]int64) {
	t.Helper()
	for i, row := range g.Steps {
		in := map[string]int64{}
		for c, name := range g.Columns {
			if row[c] != nil {
				in[name] = *row[c]
			}
		}
		for column, got := range step(in) {
			if want, ok := in[column]; ok && got != want {
				t.Fatalf("step %d at %d ns: %s is %d, the reference has %d", i, in["arriveNanos"], column, got, want)
			}
		}
	}
}

func one(ok bool) int64 {
	if ok {
		return 1
	}
	return 0
}

func TestPacerFollowsTheReference(t *testing.T) {
	for name, g := range goldens(t, "pace_*.json") {
		t.Run(name, func(t *testing.T) {
			per := time.Duration(g.Params.StatDurationMs) * time.Millisecond
			quantum := SentinelQuantum(g.Params.Count, per)
			throws := g.Params.CurrentConstructorError != ""
			if nanos := quantum == 1; g.Params.Count > 0 && !throws && nanos != g.Params.CurrentUsesNanos {
				t.Errorf("counts in %v, the reference in ns: %t", quantum, g.Params.CurrentUsesNanos)
			}
			p, err := NewPacer(Schedule{
				Count: g.Params.Count, Per: per, Quantum: quantum,
				MaxWait: time.Duration(g.Params.MaxQueueingTimeMs) * time.Millisecond,
			})
			if err != nil {
				t.Fatal(err)
			}
			compared := 0
			g.check(t, func(in map[string]int64) map[string]int64 {
				wait, ok := p.Take(time.Duration(in["arriveNanos"]), int(in["acquireCount"]))
				if _, run := in["currentPass"]; !run {
					// The older class works for this count, in ms.
					ms := int64(time.Millisecond)
					return map[string]int64{"legacyPass": one(ok), "legacyWaitNanos": (int64(wait) + ms - 1) / ms * ms}
				}
				compared++
				return map[string]int64{"currentPass": one(ok), "currentWaitNanos": int64(wait)}
			})
			if compared == 0 && !throws {
				t.Error("nothing was compared")
			}
		})
	}
}

func TestWarmUpFollowsTheReference(t *testing.T) {
	for name, g := range goldens(t, "warmup_*.json") {
		t.Run(name, func(t *testing.T) {
			ramp := Ramp{
				Rate: g.Params.Count, Period: time.Duration(g.Params.WarmUpPeriodSec) * time.Second,
				ColdFactor: g.Params.ColdFactor,
			}
			tokens, err := newTokens(ramp)
			if err != nil {
				t.Fatal(err)
			}
			if tokens.mark != g.Params.WarningToken || tokens.most != g.Params.MaxToken ||
				math.Abs(tokens.slope-g.Params.Slope) > 1e-12*g.Params.Slope {
				t.Fatalf("%+v, the reference has %+v", tokens, g.Params)
			}
			if strings.HasPrefix(name, "warmup_pace") {
				p, err := NewWarmPacer(ramp, time.Duration(g.Params.TimeoutMs)*time.Millisecond, time.Millisecond)
				if err != nil {
					t.Fatal(err)
				}
				g.check(t, func(in map[string]int64) map[string]int64 {
					wait, ok := p.Take(time.Duration(in["arriveNanos"]), int(in["acquireCount"]))
					return map[string]int64{"pass": one(ok), "waitNanos": int64(wait), "storedTokens": p.Stored()}
				})
				return
			}
			w, err := NewWarmUp(ramp)
			if err != nil {
				t.Fatal(err)
			}
			g.check(t, func(in map[string]int64) map[string]int64 {
				ok := w.Take(time.Duration(in["arriveNanos"]), int(in["acquireCount"]))
				return map[string]int64{"pass": one(ok), "waitNanos": 0, "storedTokens": w.Stored()}
			})
		})
	}
}

func TestGatesFollowTheReference(t *testing.T) {
	g := goldens(t, "default_qps.json")["default_qps"]
	rate := NewRateGate(g.Params.Count)
	g.check(t, func(in map[string]int64) map[string]int64 {
		return map[string]int64{"pass": one(rate.Take(time.Duration(in["arriveNanos"]), int(in["acquireCount"])))}
	})
	g = goldens(t, "default_thread.json")["default_thread"]
	count := NewCountGate(g.Params.Count)
	g.check(t, func(in map[string]int64) map[string]int64 {
		ok := true
		if in["enter"] == 1 {
			ok = count.Enter(int(in["acquireCount"]))
		} else {
			count.Leave()
		}
		return map[string]int64{"pass": one(ok), "threadsAfter": int64(count.Inside())}
	})
}
