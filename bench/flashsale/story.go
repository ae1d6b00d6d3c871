package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/load"
)

const (
	patience    = 2 * time.Second        // of a client
	inTime      = time.Second            // an answer that is worth something
	healthEvery = 500 * time.Millisecond // and its patience is inTime
)

// Story is what happens, in seconds and requests a second. The sale and the
// stall of the database begin and end together.
type Story struct {
	Calm     float64 `json:"calm_seconds"`
	Sale     float64 `json:"sale_seconds"`
	After    float64 `json:"after_seconds"`
	CalmRate float64 `json:"calm_rate"`
	SaleRate float64 `json:"sale_rate"`
	Capacity float64 `json:"capacity"` // of the service while the database does not stall
}

// Seconds is how long it takes.
func (s Story) Seconds() float64 { return s.Calm + s.Sale + s.After }

// Run is the story with one gate.
type Run struct {
	Name   string       `json:"name"`
	Says   string       `json:"says"`
	Before load.Summary `json:"before"`
	During load.Summary `json:"during"`
	After  load.Summary `json:"after"`

	// BackAfter is how long after the sale nearly all were answered in time
	// again, and stayed so, in seconds; -1: never.
	BackAfter float64 `json:"back_after_seconds"`

	HealthChecks uint64 `json:"health_checks"`
	HealthFailed uint64 `json:"health_checks_failed"`

	Seconds []Second `json:"seconds"`
	Looks   []Look   `json:"looks,omitempty"` // at headgate
}

// Second is one second of a run.
type Second struct {
	Offered uint64  `json:"offered"`
	Good    uint64  `json:"good"`
	P99     float64 `json:"p99_seconds"` // of the answered
}

// Look is what headgate said of itself.
type Look struct {
	At       float64 `json:"at_seconds"`
	Limit    int     `json:"limit"`
	InFlight int     `json:"in_flight"`
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// play tells the story with one gate.
func (s Story) play(ctx context.Context, g post, st *stage, svc *service, cli, probe *lab.Host) (_ Run, err error) {
	r := Run{Name: g.Name, Says: g.Says}
	appPort := port
	if g.proxied {
		appPort = behindPort
	}
	stop, err := svc.startApp(ctx, appPort)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	raised, err := g.raise(ctx, st)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, raised.lower()) }()

	to := netip.AddrPortFrom(st.srv.Addr4, port)
	run := func(h *lab.Host, cfg load.Config, into *load.Recorder) error {
		return h.Do(func() error { return load.Run(ctx, cfg, into.Record) })
	}
	// The first request of each thread connects to the database.
	warm := load.Config{Target: to, Arrivals: load.Uniform(load.Step{Rate: s.CalmRate, For: time.Second}), Request: load.Get("/")}
	if err := run(cli, warm, &load.Recorder{}); err != nil {
		return r, err
	}

	begin := time.Now()
	var clients, checks load.Recorder
	var wg sync.WaitGroup
	failures := make(chan error, 4)
	do := func(f func() error) {
		wg.Go(func() {
			if err := f(); err != nil {
				failures <- err
			}
		})
	}
	do(func() error {
		return run(cli, load.Config{
			Target: to, Request: load.Get("/"), Timeout: patience,
			Arrivals: load.Poisson(1, load.Step{Rate: s.CalmRate, For: seconds(s.Calm)},
				load.Step{Rate: s.SaleRate, For: seconds(s.Sale)}, load.Step{Rate: s.CalmRate, For: seconds(s.After)}),
		}, &clients)
	})
	do(func() error {
		return run(probe, load.Config{
			Target: to, Request: load.Get("/health"), Timeout: inTime,
			Arrivals: load.Uniform(load.Step{Rate: 1 / healthEvery.Seconds(), For: seconds(s.Seconds())}),
		}, &checks)
	})
	do(func() error {
		defer svc.queriesTake(context.WithoutCancel(ctx), queryTime)
		if err := sleep(ctx, time.Until(begin.Add(seconds(s.Calm)))); err != nil {
			return err
		}
		if err := svc.queriesTake(ctx, stalledTime); err != nil {
			return err
		}
		return sleep(ctx, time.Until(begin.Add(seconds(s.Calm+s.Sale))))
	})
	if raised.look != nil {
		do(func() error {
			for time.Since(begin) < seconds(s.Seconds()) {
				if err := sleep(ctx, 250*time.Millisecond); err != nil {
					return err
				}
				if t, ok := raised.look(); ok {
					r.Looks = append(r.Looks, Look{At: time.Since(begin).Seconds(), Limit: t.Limit, InFlight: t.InFlight})
				}
			}
			return nil
		})
	}
	wg.Wait()
	select {
	case err := <-failures:
		return r, err
	default:
	}
	if n := clients.Counts().Unsent; n > 0 {
		return r, fmt.Errorf("the load generator did not keep up: %d requests were not sent", n)
	}

	r.Before = clients.Summarize(0, seconds(s.Calm), inTime)
	r.During = clients.Summarize(seconds(s.Calm), seconds(s.Calm+s.Sale), inTime)
	r.After = clients.Summarize(seconds(s.Calm+s.Sale), seconds(s.Seconds()), inTime)
	health := checks.Summarize(0, seconds(s.Seconds())+1, inTime)
	r.HealthChecks, r.HealthFailed = health.Arrived, health.Arrived-health.Good
	for at := 0.0; at < s.Seconds(); at++ {
		sum := clients.Summarize(seconds(at), seconds(at+1), inTime)
		r.Seconds = append(r.Seconds, Second{Offered: sum.Arrived, Good: sum.Good, P99: sum.P99Seconds})
	}
	r.BackAfter = s.backAfter(r.Seconds)
	return r, nil
}

// backAfter looks for the first second after the sale from which on at least
// 95 % of each second's arrivals were answered in time.
func (s Story) backAfter(all []Second) float64 {
	after := all[int(s.Calm+s.Sale):]
	back := len(after)
	for back > 0 && float64(after[back-1].Good) >= 0.95*float64(after[back-1].Offered) {
		back--
	}
	if back == len(after) {
		return -1
	}
	return float64(back)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
