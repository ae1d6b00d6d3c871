package e2e

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/internal/lab/load"
	"headgate/pkg/api"
	"headgate/pkg/config"
)

// watched is an agent with one target of each kind, a server behind each, and
// clients that send more than they carry.
type watched struct {
	addr string // of its API

	stop  context.CancelFunc
	load  sync.WaitGroup
	close func()
}

// What the servers of watched carry: four requests of 20 ms at once.
const (
	watchedWorkers  = 4
	watchedCapacity = watchedWorkers * float64(time.Second/work)
)

// watch starts an agent and, until quiet is called or so long, the load.
func watch(t *testing.T, during time.Duration) *watched {
	t.Helper()
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	var sources []netip.Addr
	for i := range 16 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 83, 1, byte(100 + i)}), 24)
		if err := cli.AddAddr("srv", p); err != nil {
			t.Fatal(err)
		}
		sources = append(sources, p.Addr())
	}

	cfg := configFor(srv, 8080, func(r *config.Rule) {
		r.Name = "shop"
		r.Classes = []config.Class{{Name: "partners", Sources: []netip.Prefix{netip.MustParsePrefix("10.83.1.100/30")}, Share: 0.3}}
	})
	cfg.Listen = "127.0.0.1:0"
	for i, rule := range []struct {
		name string
		set  func(*config.Rule)
	}{
		{"database", requests(4)},
		{"sign-up", func(r *config.Rule) { paced(60, 2*time.Second)(r); fixed(200)(r) }},
		{"search", func(r *config.Rule) { r.Mode = config.ModeObserve }},
	} {
		r := configFor(srv, uint16(8081+i), rule.set).Rules[0]
		r.Name = rule.name
		cfg.Rules = append(cfg.Rules, r)
	}
	for i := range cfg.Rules {
		serveAt(t, srv, uint16(8080+i), backend.Spec{
			Protocol: "http", Workers: watchedWorkers, Service: work, Contention: 0.05, MaxSlowdown: 4,
		})
	}

	server, err := api.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a := start(t, cfg)
	served := make(chan error, 1)
	go func() { served <- server.Serve(a, slog.New(slog.NewTextHandler(t.Output(), nil))) }()
	ctx, stop := context.WithCancel(t.Context())
	w := &watched{addr: server.Addr().String(), stop: stop}
	w.close = sync.OnceFunc(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { w.quiet(); w.close() })

	// Busy, more than it can, quiet, and so on.
	part := during / 8
	var steps []load.Step
	for _, rate := range []float64{0.5, 0.8, 2.5, 2.5, 0.7, 0.4, 1.5, 0.9} {
		steps = append(steps, load.Step{Rate: rate * watchedCapacity, For: part})
	}
	for i, factor := range []float64{1, 0, 0.5, 0.25} {
		if factor == 0 {
			continue
		}
		scaled := make([]load.Step, len(steps))
		for j, s := range steps {
			scaled[j] = load.Step{Rate: factor * s.Rate, For: s.For}
		}
		w.load.Go(func() {
			err := cli.Do(func() error {
				return load.Run(ctx, load.Config{
					Target:   netip.AddrPortFrom(srv.Addr4, uint16(8080+i)),
					Arrivals: load.Poisson(uint64(i+1), scaled...),
					Sources:  sources,
					Request:  load.Get("/"),
				}, func(load.Result) {})
			})
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
	// Twelve clients that keep their connections.
	pool := askers{n: 12, from: cli, to: netip.AddrPortFrom(srv.Addr4, 8081)}
	conns := pool.dial(t)
	context.AfterFunc(ctx, func() { closeAll(conns) })
	w.load.Go(func() {
		if got := pool.drive(conns, during); len(got.failed) > 0 && ctx.Err() == nil {
			t.Error(got.failed[0])
		}
	})
	return w
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		c.Close()
	}
}

// quiet ends the load.
func (w *watched) quiet() {
	w.stop()
	w.load.Wait()
}
