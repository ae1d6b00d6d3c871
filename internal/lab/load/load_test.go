package load

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"headgate/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

func all(arrivals Arrivals) []time.Duration {
	var times []time.Duration
	for {
		at, ok := arrivals()
		if !ok {
			return times
		}
		times = append(times, at)
	}
}

func TestUniform(t *testing.T) {
	times := all(Uniform(
		Step{Rate: 10, For: time.Second}, Step{For: 500 * time.Millisecond}, Step{Rate: 100, For: time.Second}))
	var first, second []time.Duration
	for _, at := range times {
		if at < 1500*time.Millisecond {
			first = append(first, at)
		} else {
			second = append(second, at)
		}
	}
	if len(first) < 9 || len(first) > 10 || len(second) < 99 || len(second) > 101 {
		t.Errorf("%d and %d arrivals, want 10 and 100", len(first), len(second))
	}
	for i := range second[1:] {
		if gap := second[i+1] - second[i]; (gap - 10*time.Millisecond).Abs() > time.Microsecond {
			t.Errorf("gap %v, want 10ms", gap)
		}
	}
	if first[len(first)-1] >= time.Second {
		t.Errorf("an arrival at %v, in the pause", first[len(first)-1])
	}
}

// The gaps of a Poisson process have mean and standard deviation 1/rate.
func TestPoisson(t *testing.T) {
	const rate, n = 1000, 100_000
	times := all(Poisson(1, Step{Rate: rate, For: n / rate * time.Second}))
	// The number of arrivals has standard deviation sqrt(n); allow five.
	if d := math.Abs(float64(len(times) - n)); d > 5*math.Sqrt(n) {
		t.Errorf("%d arrivals, want about %d", len(times), n)
	}
	var sum, squares float64
	for i := range times[1:] {
		gap := (times[i+1] - times[i]).Seconds()
		sum += gap
		squares += gap * gap
	}
	mean := sum / float64(len(times)-1)
	deviation := math.Sqrt(squares/float64(len(times)-1) - mean*mean)
	if math.Abs(mean*rate-1) > 0.02 || math.Abs(deviation*rate-1) > 0.02 {
		t.Errorf("gaps have mean %v and deviation %v, want 1/%d both", mean, deviation, rate)
	}
}

func TestArrivalsAscendWithinTheSchedule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var steps []Step
		var length time.Duration
		for range rapid.IntRange(0, 5).Draw(t, "steps") {
			step := Step{
				Rate: float64(rapid.IntRange(0, 2000).Draw(t, "rate")),
				For:  time.Duration(rapid.IntRange(0, 1000).Draw(t, "ms")) * time.Millisecond,
			}
			steps = append(steps, step)
			length += step.For
		}
		for _, arrivals := range []Arrivals{
			Uniform(steps...), Poisson(rapid.Uint64().Draw(t, "seed"), steps...),
		} {
			last := time.Duration(0)
			for _, at := range all(arrivals) {
				if at < last || at >= length {
					t.Fatalf("arrival at %v after one at %v in a schedule of %v", at, last, length)
				}
				last = at
			}
		}
	})
}

// run runs a load of n arrivals, 1 ms apart, and returns the outcomes.
func run(t *testing.T, target string, n int, change func(*Config)) (Counts, []Result) {
	t.Helper()
	cfg := Config{
		Target:   netip.MustParseAddrPort(target),
		Arrivals: Uniform(Step{Rate: 1000, For: time.Duration(n)*time.Millisecond + 500*time.Microsecond}),
		Request:  Get("/"),
	}
	if change != nil {
		change(&cfg)
	}
	var rec Recorder
	if err := Run(t.Context(), cfg, rec.Record); err != nil {
		t.Fatal(err)
	}
	return rec.Counts(), rec.results
}

func TestOutcomesOverHTTP(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow":
			<-r.Context().Done()
		case "/busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write(make([]byte, 300_000)) // more than one read
	}))
	defer srv.Close()
	address := srv.Listener.Addr().String()

	if got, _ := run(t, address, 50, nil); got != (Counts{Arrived: 50, Answered: 50}) {
		t.Errorf("200: %+v", got)
	}
	loopback := []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")}
	if got, _ := run(t, address, 50, func(c *Config) { c.Sources = loopback }); got != (Counts{Arrived: 50, Answered: 50}) {
		t.Errorf("with sources: %+v", got)
	}
	if got, _ := run(t, address, 50, func(c *Config) { c.Request = Get("/busy") }); got != (Counts{Arrived: 50, Failed: 50}) {
		t.Errorf("503: %+v", got)
	}
	got, results := run(t, address, 50, func(c *Config) { c.Request, c.Timeout = Get("/slow"), 100*time.Millisecond })
	if got != (Counts{Arrived: 50, TimedOut: 50}) {
		t.Errorf("slow: %+v", got)
	}
	for _, r := range results {
		if r.Latency < 100*time.Millisecond || r.Latency > 500*time.Millisecond {
			t.Errorf("timed out after %v, want 100ms", r.Latency)
		}
	}
	got, _ = run(t, address, 50, func(c *Config) {
		c.Request, c.Timeout, c.MaxOutstanding = Get("/slow"), 200*time.Millisecond, 10
	})
	if got != (Counts{Arrived: 50, TimedOut: 10, Unsent: 40}) {
		t.Errorf("at most ten outstanding: %+v", got)
	}
}

func TestOutcomesBelowHTTP(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if got, _ := run(t, closed, 50, nil); got != (Counts{Arrived: 50, Refused: 50}) {
		t.Errorf("closed port: %+v", got)
	}

	for name, answer := range map[string]struct {
		text string
		want Counts
	}{
		"closed at once":  {"", Counts{Arrived: 50, Reset: 50}},
		"cut short":       {"HTTP/1.1 2", Counts{Arrived: 50, Failed: 50}},
		"not HTTP at all": {"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", Counts{Arrived: 50, Failed: 50}},
	} {
		address := raw(t, func(conn net.Conn) { _, _ = io.WriteString(conn, answer.text) })
		if got, _ := run(t, address, 50, nil); got != answer.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
	// Closing with unread data or linger 0 sends a RST.
	address := raw(t, func(conn net.Conn) { _ = conn.(*net.TCPConn).SetLinger(0) })
	if got, _ := run(t, address, 50, nil); got != (Counts{Arrived: 50, Reset: 50}) {
		t.Errorf("reset: %+v", got)
	}
}

// raw serves connections after their request has been read, then closes them.
func raw(t *testing.T, answer func(net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				in := bufio.NewReader(conn)
				for {
					line, err := in.ReadString('\n')
					if err != nil || line == "\r\n" {
						break
					}
				}
				answer(conn)
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); group.Wait() })
	return ln.Addr().String()
}

// A server that stalls must not slow the arrivals down, and the wait of each
// must be seen in full: this is what closed-loop generators get wrong.
func TestStallIsSeenInFull(t *testing.T) {
	const stall = 300 * time.Millisecond
	gate := make(chan struct{})
	address := raw(t, func(conn net.Conn) {
		<-gate
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
	})
	open := make(chan time.Time, 1)
	timer := time.AfterFunc(stall, func() { open <- time.Now(); close(gate) })
	defer timer.Stop()

	begin := time.Now()
	got, results := run(t, address, 100, nil)
	if got != (Counts{Arrived: 100, Answered: 100}) {
		t.Fatalf("%+v", got)
	}
	opened := <-open
	for _, r := range results {
		if want := opened.Sub(begin) - r.At - 5*time.Millisecond; r.Latency < want {
			t.Errorf("arrival at %v has latency %v, want at least %v", r.At, r.Latency, want)
		}
	}
}

func TestContextEndsTheRun(t *testing.T) {
	address := raw(t, func(net.Conn) { time.Sleep(50 * time.Millisecond) })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	err := Run(ctx, Config{
		Target: netip.MustParseAddrPort(address), Arrivals: Uniform(Step{Rate: 100, For: time.Hour}), Request: Get("/"),
	}, func(Result) {})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > time.Second {
		t.Errorf("Run: %v after %v", err, time.Since(begin))
	}
}

func TestSummarize(t *testing.T) {
	var rec Recorder
	rec.Record(Result{At: 0, Latency: time.Hour, Outcome: Answered}) // before the stretch
	for i := range 100 {
		rec.Record(Result{At: time.Second, Latency: time.Duration(i+1) * time.Millisecond, Outcome: Answered})
	}
	for o := Refused; o < outcomes; o++ {
		rec.Record(Result{At: 2 * time.Second, Outcome: o})
	}
	rec.Record(Result{At: 3 * time.Second, Outcome: Answered}) // after it
	got := rec.Summarize(time.Second, 3*time.Second, 70*time.Millisecond)
	want := Summary{
		Counts:  Counts{Arrived: 105, Answered: 100, Refused: 1, Reset: 1, TimedOut: 1, Failed: 1, Unsent: 1},
		Seconds: 2, Good: 70, P50Seconds: 0.050, P99Seconds: 0.099, MaxSeconds: 0.100,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got.Offered() != 52.5 || got.Goodput() != 35 {
		t.Errorf("offered %v, goodput %v; want 52.5, 35", got.Offered(), got.Goodput())
	}
	if empty := rec.Summarize(9*time.Second, 9*time.Second, 0); empty != (Summary{}) || empty.Offered() != 0 {
		t.Errorf("empty stretch: %+v", empty)
	}
}

func TestQuantile(t *testing.T) {
	values := []time.Duration{1, 2, 3, 4}
	for q, want := range map[float64]time.Duration{0: 1, 0.25: 1, 0.26: 2, 0.5: 2, 0.75: 3, 0.99: 4, 1: 4} {
		if got := quantile(values, q); got != want {
			t.Errorf("quantile(%v) = %d, want %d", q, got, want)
		}
	}
}
