package e2e

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/agent"
	"headgate/pkg/loader"
)

// upstream is the port of what the proxies of these tests pass everything on to.
const upstream = 7000

func behind(t *testing.T, h *lab.Host, start func()) *lab.Server {
	s := serveAt(t, h, upstream, contended("http"))
	start()
	return s
}

// The limit holds whatever the server is and however it is asked, and takes
// next to nothing from what it carries. The agent is a process of its own: in
// that of the clients it would wait for the processor until they have written.
func TestRequestLimitOfServers(t *testing.T) {
	upload := fmt.Sprintf("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n%s", 1<<20, strings.Repeat("x", 1<<20))
	contend := func(protocol string) func(*testing.T, *lab.Host) *lab.Server {
		return func(t *testing.T, h *lab.Host) *lab.Server { return serve(t, h, contended(protocol)) }
	}
	for _, test := range []struct {
		name  string
		start func(*testing.T, *lab.Host) *lab.Server
		set   func(a *askers, srv *lab.Host)
		share float64 // of what ten clients get without a limit
	}{
		{"IPv6", contend("http"), func(a *askers, srv *lab.Host) { a.to = netip.AddrPortFrom(srv.Addr6, port) }, 0.95},
		{"loopback", contend("http"), func(a *askers, srv *lab.Host) {
			a.from, a.to = srv, netip.MustParseAddrPort("127.0.0.1:8080")
		}, 0.95},
		{"TLS 1.3", contend("https"), func(a *askers, _ *lab.Host) { a.tls = tlsVersion(tls.VersionTLS13) }, 0.95},
		{"TLS 1.2", contend("https"), func(a *askers, _ *lab.Host) { a.tls = tlsVersion(tls.VersionTLS12) }, 0.95},
		{"nginx", func(t *testing.T, h *lab.Host) *lab.Server {
			return behind(t, h, func() { startNginx(t, h, port, "127.0.0.1:7000") })
		}, func(*askers, *lab.Host) {}, 0.95},
		{"nginx with TLS", func(t *testing.T, h *lab.Host) *lab.Server {
			return behind(t, h, func() { startNginxTLS(t, h, port, "127.0.0.1:7000") })
		}, func(a *askers, _ *lab.Host) { a.tls = tlsVersion(tls.VersionTLS13) }, 0.9},
		{"server speaks first", contend("line"), func(a *askers, _ *lab.Host) {
			a.ask = "hello\n"
			a.greeting = line
			a.read = line
		}, 0.95},
		{"1 MB requests", contend("http"), func(a *askers, _ *lab.Host) { a.n, a.ask = 40, upload }, 0.95},
	} {
		t.Run(test.name, func(t *testing.T) {
			srv, cli, to := hosts(t)
			s := test.start(t, srv)
			a := askers{n: 100, from: cli, to: to}
			test.set(&a, srv)
			few := a
			few.n = 10
			alone := func() float64 {
				got := few.run(t, 800*time.Millisecond)
				got.log(t, "ten alone")
				return got.rate
			}
			limited := func() float64 {
				mostInside(t, s)
				ag := startLimiting(t, srv, 10)
				before := resent(t, a.from)
				got := a.run(t, 1200*time.Millisecond)
				got.log(t, fmt.Sprint(a.n, " clients"))
				again := resent(t, a.from) - before
				t.Logf("%d segments sent again by clients", again)
				if most := uint64(2 * len(got.waits)); again > most {
					t.Errorf("%d segments sent again, want at most %d", again, most)
				}
				got.check(t)
				if most := mostInside(t, s); most != 10 {
					t.Errorf("%d inside at once, want 10", most)
				}
				awaitUnits(t, 0, 0)
				await(t, "nobody is left", func() (any, bool) {
					st := ag.target(t)
					return st, st.InFlight == 0 && st.Waiting == 0 && st.Pending == 0
				})
				ag.kill(t)
				cleanUp(t)
				return got.rate
			}
			isLeft(t, test.share, alone, limited)
		})
	}
}

// isLeft checks that a share of a rate is left with a limit, in one of some rounds.
// It is one of the better rate before and after, without the limit: the machine may
// have other work, and none of that makes a limit look good.
func isLeft(t *testing.T, share float64, without, with func() float64) {
	t.Helper()
	before := without()
	for round := 1; ; round++ {
		got, after := with(), without()
		rate := max(before, after)
		if got >= share*rate {
			return
		}
		t.Logf("round %d: %.3f of what it is without a limit, want %.2f", round, got/rate, share)
		if round == rounds {
			t.Errorf("no better in %d rounds", rounds)
			return
		}
		before = after
	}
}

// cleanUp removes what agents left behind that have ended.
func cleanUp(t *testing.T) {
	t.Helper()
	if _, err := agent.CleanUp(stateDir(), discard()); err != nil && !errors.Is(err, loader.ErrInUse) {
		t.Errorf("clean up: %v", err)
	}
}

// startLimiting starts an agent that limits requests to the port of these tests,
// as a process. What it leaves behind is cleaned up with the test.
func startLimiting(t *testing.T, h *lab.Host, limit int) *child {
	t.Helper()
	t.Cleanup(func() { cleanUp(t) })
	c, started := startChild(t, h, childSpec{State: stateDir(), Limit: limit, Requests: true})
	if started.Error != "" {
		t.Fatalf("start the agent: %s", started.Error)
	}
	return c
}

// A slow command of a server that works on one at a time.
func TestRequestLimitOfRedis(t *testing.T) {
	srv, cli, to := hosts(t)
	if _, err := srv.StartRedis(t.Context(), port); err != nil {
		t.Fatal(err)
	}
	// Counted in number, not in time: without a limit all answers come together,
	// every 50 commands, and a span of time has one such crowd more or less.
	a := askers{n: 50, each: 10, from: cli, to: to, ask: "DEBUG SLEEP 0.002\r\n", read: line}
	isLeft(t, 0.95, func() float64 {
		got := a.run(t, patience)
		got.log(t, "without a limit")
		return got.rate
	}, func() float64 {
		ag := begin(t, srv, requests(2))
		peak := watchPeak(t)
		got := a.run(t, patience)
		got.log(t, "limit 2")
		got.check(t)
		if most := peak(); most != 2 {
			t.Errorf("%d in flight at once, want 2", most)
		}
		if err := ag.Remove(); err != nil {
			t.Fatal(err)
		}
		return got.rate
	})
	// What holding costs: of commands that take microseconds, nearly all wait.
	ag := begin(t, srv, requests(2))
	a.ask, a.each = "PING\r\n", 0
	quick := a.run(t, 500*time.Millisecond)
	quick.log(t, "quick commands, limit 2")
	if err := ag.Stop(); err != nil {
		t.Fatal(err)
	}
	free := begin(t, srv, fixed(1000))
	freely := a.run(t, 500*time.Millisecond)
	freely.log(t, "without a limit of requests")
	if err := free.Remove(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f us more for each that waits", 1e6/quick.rate-1e6/freely.rate)
}

// Each request is counted once, and nothing else is: no greeting, no handshake,
// no session tickets, no end. And who asks nothing more holds no slot.
func TestRequestsAreCountedOnce(t *testing.T) {
	const clients, each = 20, 3
	quick := func(protocol string, service time.Duration) func(*testing.T, *lab.Host) {
		return func(t *testing.T, h *lab.Host) { serve(t, h, backend.Spec{Protocol: protocol, Service: service}) }
	}
	nginx := func(t *testing.T, h *lab.Host) {
		serveAt(t, h, upstream, backend.Spec{Protocol: "http", Service: 5 * time.Millisecond})
		startNginxTLS(t, h, port, "127.0.0.1:7000")
	}
	secure := func(v uint16) func(*askers) { return func(a *askers) { a.tls = tlsVersion(v) } }
	for _, test := range []struct {
		name  string
		start func(*testing.T, *lab.Host)
		set   func(*askers)
	}{
		{"HTTP", quick("http", 5*time.Millisecond), func(*askers) {}},
		{"server speaks first", quick("line", 5*time.Millisecond), func(a *askers) { a.ask, a.read, a.greeting = "hello\n", line, line }},
		{"TLS 1.2", quick("https", 5*time.Millisecond), secure(tls.VersionTLS12)},
		{"TLS 1.3", quick("https", 5*time.Millisecond), secure(tls.VersionTLS13)},
		{"TLS 1.3 at once", quick("https", 0), secure(tls.VersionTLS13)},
		{"TLS 1.2 of nginx", nginx, secure(tls.VersionTLS12)},
		{"TLS 1.3 of nginx", nginx, secure(tls.VersionTLS13)},
	} {
		t.Run(test.name, func(t *testing.T) {
			srv, cli, to := hosts(t)
			test.start(t, srv)
			ag := startHolding(t, srv, requests(2))
			a := askers{n: clients, from: cli, to: to}
			test.set(&a)
			for i, c := range a.dial(t) {
				in := bufio.NewReader(c)
				_ = c.SetDeadline(time.Now().Add(patience))
				err := a.greet(in)
				for range each {
					if err == nil {
						err = a.once(c, in)
					}
				}
				if err != nil {
					t.Fatalf("client %d: %v", i, err)
				}
				defer c.Close() // says goodbye, in TLS
			}
			awaitUnits(t, 0, 0)
			await(t, "each is counted", func() (any, bool) {
				st := target(ag)
				return st, st.AdmittedTotal == clients*each && st.FinishedTotal == clients*each && st.Connections == clients
			})
		})
	}
}

// resent is how many TCP segments a host has sent again.
func resent(t *testing.T, h *lab.Host) uint64 {
	t.Helper()
	return counter(t, h, "Tcp", "RetransSegs")
}

// The first response of a connection with TLS 1.3 that comes at once looks like
// session tickets. On a server whose responses are slow as a rule it takes the
// agent some seconds to see that it was none.
func TestRequestThatLooksUnanswered(t *testing.T) {
	srv, cli, to := hosts(t)
	serve(t, srv, backend.Spec{Protocol: "https", Service: work})
	ag := startHolding(t, srv, requests(10))
	a := askers{n: 4, each: 10, from: cli, to: to, tls: tlsVersion(tls.VersionTLS13)}
	a.drive(a.dial(t), patience).check(t)
	a.ask = "GET /?service=0s HTTP/1.1\r\nHost: test\r\n\r\n"
	for _, c := range a.dial(t) {
		_ = c.SetDeadline(time.Now().Add(patience))
		if err := a.once(c, bufio.NewReader(c)); err != nil {
			t.Fatal(err)
		}
	}
	if in, _ := kernelUnits(t); in == 0 {
		t.Error("all responses were told from session tickets: that tests nothing")
	}
	empty(t, ag)
	if st := target(ag); st.AdmittedTotal != 44 || st.FinishedTotal != 44 {
		t.Errorf("%d admitted, %d finished, want 44", st.AdmittedTotal, st.FinishedTotal)
	}
}
