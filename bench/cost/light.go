package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"headgate/bench/internal/gate"
	"headgate/internal/lab"
)

const lightRate = 1000 // requests a second, all clients together

// Light is what requests take at a rate that keeps nobody waiting: medians of
// several turns, and the CPU time of the whole machine over them all.
type Light struct {
	With string  `json:"with"`
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`
	CPU  float64 `json:"cpu_us_per_request"`
}

// light compares requests on kept-alive connections to nginx alone, behind headgate
// and through HAProxy, in turn, at a rate that all of them carry with ease.
func (b *bench) light(ctx context.Context, r *Report) (err error) {
	srv, err := b.srv.StartNginx(ctx, lab.Nginx{Port: port})
	if err != nil {
		return err
	}
	defer srv.Stop()
	dir, err := os.MkdirTemp("", "haproxy-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	nothing := func(context.Context) (gate.Lower, error) { return func() error { return nil }, nil }
	ways := []struct {
		with  string
		port  uint16
		raise func(context.Context) (gate.Lower, error)
	}{
		{"nothing", port, nothing},
		{"headgate", port, b.headgate().raise},
		{"HAProxy", proxyPort, func(ctx context.Context) (gate.Lower, error) {
			return gate.HAProxy{Port: proxyPort, Behind: port, MaxConn: 1000, Queue: time.Second, HTTP: true, Reuse: true}.Start(ctx, b.srv, dir)
		}},
	}
	var p50, p99 [3][]float64
	var busy [3]time.Duration
	var requests [3]int
	for turn := range b.pairs / 2 {
		for i := range ways {
			at := (turn + i) % len(ways)
			lower, err := ways[at].raise(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", ways[at].with, err)
			}
			took, cpu, err := b.paced(ctx, ways[at].port, 2*b.phase)
			if err := errors.Join(err, lower()); err != nil {
				return fmt.Errorf("%s: %w", ways[at].with, err)
			}
			p50[at] = append(p50[at], quantile(took, .5))
			p99[at] = append(p99[at], quantile(took, .99))
			busy[at] += cpu
			requests[at] += len(took)
		}
	}
	r.Light = nil
	for i, w := range ways {
		slices.Sort(p50[i])
		slices.Sort(p99[i])
		l := Light{With: w.with, P50: quantile(p50[i], .5), P99: quantile(p99[i], .5), CPU: float64(busy[i].Microseconds()) / float64(requests[i])}
		fmt.Fprintf(os.Stderr, "  with %s: p50 %.0f us, p99 %.0f us, %.0f us of CPU a request\n", l.With, l.P50, l.P99, l.CPU)
		r.Light = append(r.Light, l)
	}
	return nil
}

// paced makes requests at even intervals, and returns how long each took from when it
// was due, in microseconds and in order, and the CPU time that the machine spent.
func (b *bench) paced(ctx context.Context, port uint16, d time.Duration) (took []float64, cpu time.Duration, err error) {
	const workers = 8
	var mu sync.Mutex
	var wg sync.WaitGroup
	idle, err := idleTime()
	if err != nil {
		return nil, 0, err
	}
	begin := time.Now()
	for w := range workers {
		wg.Go(func() {
			failure := b.cli.Do(func() error {
				do, done, err := b.requester(port)()
				if err != nil {
					return err
				}
				defer done()
				var mine []float64
				for i := w; ctx.Err() == nil; i += workers {
					due := begin.Add(time.Duration(i) * time.Second / lightRate)
					if due.Sub(begin) >= d {
						break
					}
					time.Sleep(time.Until(due))
					if err := do(); err != nil {
						return err
					}
					mine = append(mine, float64(time.Since(due).Nanoseconds())/1e3)
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, mine...)
				return ctx.Err()
			})
			mu.Lock()
			defer mu.Unlock()
			err = errors.Join(err, failure)
		})
	}
	wg.Wait()
	after, failure := idleTime()
	if err = errors.Join(err, failure); err == nil && len(took) == 0 {
		err = errors.New("no request was made")
	}
	slices.Sort(took)
	return took, time.Duration(b.cpus)*time.Since(begin) - (after - idle), err
}

// idleTime is how long the CPUs have had nothing to do, together: the kernel counts
// this, unlike the time that they are busy, by the clock and not by ticks, see proc(5).
func idleTime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[:max(0, strings.IndexByte(string(text), '\n'))]))
	if len(fields) < 6 {
		return 0, errors.New("/proc/stat: no time of all CPUs")
	}
	var ticks int64
	for _, f := range fields[4:6] { // idle, and idle while there is input or output under way
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100, nil // USER_HZ
}
