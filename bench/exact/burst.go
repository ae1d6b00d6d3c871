package main

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"headgate/internal/lab/load"
)

const (
	burstSize    = 1000
	burstThreads = 4
	held         = 700 * time.Millisecond // by whoever is let in
)

// Burst is what became of so many connects at once.
type Burst struct {
	load.Counts

	// Accepted is how many connections the server had, and Peak how many at once.
	Accepted int `json:"accepted"`
	Peak     int `json:"peak"`
}

// ask is what every client says, and hears.
var ask = []load.Turn{{Send: []byte("?"), Begin: "ok", End: "ok"}}

func (s *stage) bursts(ctx context.Context, to netip.AddrPort, g *Gate) error {
	for range s.plan.bursts {
		b, err := s.burst(ctx, to, burstSize)
		if err != nil {
			return err
		}
		g.Bursts = append(g.Bursts, b)
	}
	return nil
}

// burst has n clients connect at once, from several threads.
func (s *stage) burst(ctx context.Context, to netip.AddrPort, n int) (Burst, error) {
	s.server.reset(held)
	var rec load.Recorder
	var wg sync.WaitGroup
	errs := make([]error, burstThreads)
	for thread := range burstThreads {
		wg.Go(func() {
			left := n / burstThreads
			atOnce := func() (time.Duration, bool) {
				left--
				return 0, left >= 0
			}
			errs[thread] = s.cli.Do(func() error {
				return load.Run(ctx, load.Config{Target: to, Arrivals: atOnce, Turns: ask, Timeout: 3 * time.Second}, rec.Record)
			})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return Burst{}, err
	}
	b := Burst{Counts: rec.Counts()}
	b.Peak, b.Accepted, _ = s.server.seen()
	return b, s.empty(ctx)
}

// empty waits until the server has no connection any more.
func (s *stage) empty(ctx context.Context) error {
	for end := time.Now().Add(5 * time.Second); ; {
		if _, _, open := s.server.seen(); open == 0 {
			break
		}
		if time.Now().After(end) {
			return errors.New("connections stay open at the server")
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	// What ended last may be on its way to whoever counts.
	return sleep(ctx, 200*time.Millisecond)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
