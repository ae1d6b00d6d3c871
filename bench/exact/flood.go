package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	floodRate    = 2000 // SYNs a second
	regulars     = 8
	answerAfter  = 50 * time.Millisecond
	pause        = 50 * time.Millisecond // between a client's visits
	patience     = time.Second
	floodNetwork = "20.0.0.0/8"
)

// Flood is how real clients do beside SYNs that nobody stands behind.
type Flood struct {
	Seconds float64 `json:"seconds"` // of each
	SYNs    int     `json:"syns"`

	Before Visits `json:"before"`
	During Visits `json:"during"`
	After  Visits `json:"after"` // a second after it
}

// Visits are those of the real clients together.
type Visits struct {
	Made   int `json:"made"`
	Failed int `json:"failed"`
}

func (s *stage) flood(ctx context.Context, to netip.AddrPort, g *Gate) error {
	from := netip.MustParsePrefix(floodNetwork)
	// What is sent back to those who are nobody ends at the flooder.
	err := errors.Join(s.srv.AddRoute("foe", from, s.foe.Addr4), s.foe.Sysctl("net.ipv4.ip_forward", "0"))
	if err != nil {
		return err
	}
	s.server.reset(answerAfter)
	g.Flood.Seconds = s.plan.flood.Seconds()
	if g.Flood.Before, err = s.come(ctx, to); err != nil {
		return err
	}

	flooding, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	var failure error
	wg.Go(func() { g.Flood.SYNs, failure = s.foe.Flood(flooding, from, to, floodRate) })
	if err = sleep(ctx, 200*time.Millisecond); err == nil {
		g.Flood.During, err = s.come(ctx, to)
	}
	stop()
	wg.Wait()
	if err := errors.Join(err, failure); err != nil {
		return err
	}
	if err := sleep(ctx, time.Second); err != nil {
		return err
	}
	g.Flood.After, err = s.come(ctx, to)
	return err
}

// come has real clients come again and again for a time.
func (s *stage) come(ctx context.Context, to netip.AddrPort) (Visits, error) {
	var made, failed atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, regulars)
	end := time.Now().Add(s.plan.flood)
	for i := range regulars {
		wg.Go(func() {
			errs[i] = s.cli.Do(func() error {
				for time.Now().Before(end) {
					if askOnce(ctx, to) == nil {
						made.Add(1)
					} else {
						failed.Add(1)
					}
					if err := sleep(ctx, pause); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	wg.Wait()
	return Visits{Made: int(made.Load()), Failed: int(failed.Load())}, errors.Join(errs...)
}

func askOnce(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	b := make([]byte, 2)
	if _, err := c.Write(b[:1]); err != nil {
		return err
	}
	_, err = c.Read(b)
	return err
}
