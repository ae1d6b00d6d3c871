package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
)

// Churn is what is left of many connections: when all have ended, as many as the
// limit come in again, or the gate has lost count.
type Churn struct {
	Connections int   `json:"connections"`
	Refused     int   `json:"refused"` // of these; there never were as many as the limit
	After       Burst `json:"after"`   // 1000 at once

	// Counted is what the gate says is in flight when nothing is; absent where
	// it does not say.
	Counted *int `json:"counted,omitempty"`
}

const churners = 8

// churn has a few clients connect and end in all ways, and then many at once.
func (s *stage) churn(ctx context.Context, to netip.AddrPort, g *Gate) error {
	s.server.reset(0)
	g.Churn.Connections = s.plan.churn
	var mu sync.Mutex
	var wg sync.WaitGroup
	errs := make([]error, churners)
	for w := range churners {
		wg.Go(func() {
			errs[w] = s.cli.Do(func() error {
				for i := range s.plan.churn / churners {
					if err := ctx.Err(); err != nil {
						return err
					}
					if visit(ctx, to, i%4) != nil {
						mu.Lock()
						g.Churn.Refused++
						mu.Unlock()
					}
				}
				return nil
			})
		})
	}
	wg.Wait()
	if err := errors.Join(append(errs, s.empty(ctx))...); err != nil {
		return err
	}
	if s.count != nil {
		n := s.count()
		g.Churn.Counted = &n
	}
	after, err := s.burst(ctx, to, burstSize)
	g.Churn.After = after
	return err
}

// visit connects and ends in one of four ways: it asks and closes, asks and
// resets, closes at once, resets at once.
func visit(ctx context.Context, to netip.AddrPort, kind int) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	if kind == 0 || kind == 1 {
		b := make([]byte, 2)
		if _, err := c.Write(b[:1]); err != nil {
			return err
		}
		if _, err := c.Read(b); err != nil {
			return err
		}
	}
	if kind == 1 || kind == 3 {
		return c.(*net.TCPConn).SetLinger(0)
	}
	return nil
}
