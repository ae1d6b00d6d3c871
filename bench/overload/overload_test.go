package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"headgate/internal/lab/load"
)

// A step settles when from some moment on all is good to its end; a last stretch
// that is good by itself is not enough.
func TestSettled(t *testing.T) {
	const ms = time.Millisecond
	record := func(latency func(at time.Duration) time.Duration) *load.Recorder {
		var rec load.Recorder
		for at := time.Duration(0); at < time.Second; at += ms {
			rec.Record(load.Result{At: at, Latency: latency(at), Outcome: load.Answered})
		}
		return &rec
	}
	slowUntil := func(end time.Duration) func(time.Duration) time.Duration {
		return func(at time.Duration) time.Duration {
			if at < end {
				return 200 * ms
			}
			return 20 * ms
		}
	}
	for _, c := range []struct {
		slow time.Duration
		want float64
	}{{0, 0}, {120 * ms, 0.15}, {500 * ms, 0.5}, {800 * ms, -1}} {
		if got := settled(record(slowUntil(c.slow)), 0, time.Second, 100*ms, 1000); got != c.want {
			t.Errorf("slow for %v: settled after %v, want %v", c.slow, got, c.want)
		}
	}
	if got := settled(record(slowUntil(0)), 0, time.Second, 100*ms, 2000); got != -1 {
		t.Errorf("half the goodput: settled after %v", got)
	}
}

func TestBest(t *testing.T) {
	all := func(x float64) []float64 { return []float64{x - 10, x + 10} }
	if got := bestLimit([]Candidate{{1, all(100), all(100)}, {16, all(400), all(396)}, {23, all(400), all(398)}, {32, all(395), all(300)}}); got != 16 {
		t.Errorf("best limit %d, want the lowest of those within a per cent", got)
	}
	if got := bestLimit(nil); got != 0 {
		t.Errorf("best of none: %d", got)
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		all  []float64
		want float64
	}{{[]float64{0.3, 0.1, 0.2}, 0.2}, {[]float64{-1, 0.1, 0.4}, 0.4}, {[]float64{-1, -1, 0.4}, -1}} {
		if got := median(c.all); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.all, got, c.want)
		}
	}
}

// The picture can be drawn of what there is, also where nobody was answered.
func TestPicture(t *testing.T) {
	var r Report
	for _, sub := range subjects {
		s := Server{Name: sub.Name, Capacity: 800, ServiceSeconds: 0.02}
		for i, l := range limiters {
			result := Limiter{Name: l.Name}
			for _, f := range full.factors {
				sum := load.Summary{Seconds: 1, Good: uint64(min(f, 1) * 800), P50Seconds: 0.04, P99Seconds: 0.04 + 0.02*float64(i)*f}
				if sum.Answered = sum.Good; i == 0 && f > 1 {
					sum = load.Summary{Seconds: 1}
				}
				result.Points = append(result.Points, Point{Factor: f, Summary: sum})
			}
			s.Limiters = append(s.Limiters, result)
		}
		r.put(s)
	}
	file := filepath.Join(t.TempDir(), "overload.png")
	if keep := os.Getenv("OVERLOAD_PICTURE"); keep != "" {
		file = keep
	}
	if err := drawPicture(r, file); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() < 10_000 {
		t.Errorf("no picture: %v, %v", info, err)
	}
}
