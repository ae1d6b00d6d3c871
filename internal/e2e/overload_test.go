package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/internal/lab/load"
	"headgate/pkg/config"
	"headgate/pkg/loader"
)

// The overloaded server: what it carries is workers/work, and each further
// sixteen requests inside make it slower by a twentieth.
const (
	workers    = 16
	contention = 0.05
	capacity   = workers * float64(time.Second/work) // requests a second
)

// crush sends requests at five times the capacity for a time, after a second
// at half of it, to a server that is protected as set says. It returns what the
// clients got, and factors by which the medians of the service time and of the
// TCP round trip grew, as the kernel has measured them.
func crush(t *testing.T, d time.Duration, set func(*config.Rule)) (got *load.Recorder, service, trip float64) {
	t.Helper()
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	httpServer(backend.Spec{Protocol: "http", Workers: workers, Service: work, Contention: contention})(t, srv, port)
	var sources []netip.Addr
	for i := range 16 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 83, 1, byte(100 + i)}), 24)
		if err := cli.AddAddr("srv", p); err != nil {
			t.Fatal(err)
		}
		sources = append(sources, p.Addr())
	}
	startAgent(t, srv, port, set)
	send := func(rate float64, d time.Duration) *load.Recorder {
		rec := new(load.Recorder)
		err := cli.Do(func() error {
			return load.Run(t.Context(), load.Config{
				Target:   netip.AddrPortFrom(srv.Addr4, port),
				Arrivals: load.Poisson(1, load.Step{Rate: rate, For: d}),
				Sources:  sources,
				Request:  load.Get("/"),
				Timeout:  time.Second,
			}, rec.Record)
		})
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}

	send(0.5*capacity, time.Second)
	service0, trip0 := measured(t, 0, loader.Service), measured(t, 0, loader.RTT)
	got = send(5*capacity, d)
	service1 := since(measured(t, 0, loader.Service), service0)
	trip1 := since(measured(t, 0, loader.RTT), trip0)
	for name, h := range map[string][2]time.Duration{
		"service time":   {service0.Quantile(0.5), service1.Quantile(0.5)},
		"TCP round trip": {trip0.Quantile(0.5), trip1.Quantile(0.5)},
	} {
		t.Logf("%s: p50 %v at half the capacity, %v at five times", name, h[0], h[1])
	}
	if c := got.Counts(); c.Unsent > 0 || c.Failed > 0 || c.Reset > 0 {
		t.Errorf("unsent, failed or reset: %+v", c)
	}
	factor := func(from, to time.Duration) float64 { return to.Seconds() / from.Seconds() }
	return got, factor(service0.Quantile(0.5), service1.Quantile(0.5)), factor(trip0.Quantile(0.5), trip1.Quantile(0.5))
}

// TestOverloadUnlimited shows what the limit follows and why: the service time
// tells of the server's own queue, the round trip of TCP does not.
func TestOverloadUnlimited(t *testing.T) {
	got, service, trip := crush(t, 3*time.Second, func(r *config.Rule) { r.Mode = config.ModeObserve })
	s := got.Summarize(0, 3*time.Second, 10*work)
	t.Logf("of %d requests %d answered, %d within %v; service time x%.0f, TCP round trip x%.2f",
		s.Arrived, s.Answered, s.Good, 10*work, service, trip)
	if service < 10 {
		t.Errorf("the service time grew %.1f times, want tenfold at least", service)
	}
	if trip > 3 {
		t.Errorf("the TCP round trip grew %.1f times, want it to stay", trip)
	}
	if s.Refused > 0 {
		t.Errorf("%d refused while observing", s.Refused)
	}
}

func TestOverloadLimited(t *testing.T) {
	for _, algorithm := range []string{config.DefaultRule().Limit.Algorithm, "gradient2"} {
		t.Run(algorithm, func(t *testing.T) {
			for round := 1; ; round++ {
				var goodput, p99 float64
				t.Run(fmt.Sprint("round ", round), func(t *testing.T) { goodput, p99 = limited(t, algorithm) })
				if goodput >= 0.9 && p99 <= 8 {
					return
				}
				t.Logf("goodput %.2f of the capacity, want 0.9; p99 %.1f service times, want 8 at most", goodput, p99)
				if round == rounds {
					t.Fatalf("no better in %d rounds", rounds)
				}
			}
		})
	}
}

// limited returns the goodput as a share of the capacity and the 99th
// percentile of the latency in service times: medians over the seconds but
// the first, which is for finding the limit.
func limited(t *testing.T, algorithm string) (goodput, p99 float64) {
	const seconds = 5
	got, _, _ := crush(t, seconds*time.Second, func(r *config.Rule) { r.Limit.Algorithm = algorithm })
	var goodputs, p99s []float64
	for i := range seconds {
		s := got.Summarize(time.Duration(i)*time.Second, time.Duration(i+1)*time.Second, 10*work)
		goodput, p99 := s.Goodput()/capacity, s.P99Seconds/work.Seconds()
		t.Logf("second %d: goodput %.2f of the capacity, p99 %.1f service times, %d of %d refused",
			i, goodput, p99, s.Refused, s.Arrived)
		if i > 0 {
			goodputs, p99s = append(goodputs, goodput), append(p99s, p99)
		}
	}
	slices.Sort(goodputs)
	slices.Sort(p99s)
	return goodputs[len(goodputs)/2], p99s[len(p99s)/2]
}
