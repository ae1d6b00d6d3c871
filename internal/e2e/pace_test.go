package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
)

// path is a way from clients to a server.
type path struct {
	name  string
	hosts func(*testing.T) (srv, cli *lab.Host, to netip.Addr)
}

var (
	overIPv4 = path{"IPv4", func(t *testing.T) (srv, cli *lab.Host, to netip.Addr) {
		srv, cli, at := hosts(t)
		return srv, cli, at.Addr()
	}}
	overIPv6 = path{"IPv6", func(t *testing.T) (srv, cli *lab.Host, to netip.Addr) {
		srv, cli, _ = hosts(t)
		return srv, cli, srv.Addr6
	}}
	loopbackIPv4 = path{"loopback IPv4", func(t *testing.T) (srv, cli *lab.Host, to netip.Addr) {
		h := lab.ForTest(t, "srv").Host("srv")
		return h, h, netip.MustParseAddr("127.0.0.1")
	}}
	loopbackIPv6 = path{"loopback IPv6", func(t *testing.T) (srv, cli *lab.Host, to netip.Addr) {
		h := lab.ForTest(t, "srv").Host("srv")
		return h, h, netip.IPv6Loopback()
	}}
	elsewhere = path{"clients elsewhere", func(t *testing.T) (srv, cli *lab.Host, to netip.Addr) {
		w := wired(t, nil)
		return w.A.Host, w.B.Host, w.A.Addr4
	}}
)

// checkPaced checks that clients which all came at the same moment were let in
// each at its turn.
func checkPaced(t *testing.T, c *crowd, n int, interval time.Duration) {
	t.Helper()
	if len(c.connected) != n || c.refused != 0 || len(c.failed) != 0 {
		t.Fatalf("%v; want %d connected", c, n)
	}
	for i, at := range c.admitted {
		if turn := time.Duration(i) * interval; at < turn || at > turn+slack {
			t.Errorf("number %d came in after %v, want %v", i, at, turn)
		}
	}
}

// checkEven checks that their gaps were even, too.
func checkEven(t *testing.T, c *crowd, interval time.Duration) {
	t.Helper()
	even, gaps := 0, len(c.admitted)-1
	for i := range gaps {
		if gap := c.admitted[i+1] - c.admitted[i] - interval; gap.Abs() <= 10*time.Millisecond {
			even++
		}
	}
	t.Logf("the last after %v; %d of %d gaps are %v, 10ms more or less", c.admitted[gaps], even, gaps, interval)
	if even*100 < 95*gaps {
		t.Errorf("%d of %d gaps are within 10ms of %v; want 95%%: %v", even, gaps, interval, c.admitted)
	}
}

// Whoever comes in a crowd is let in at even intervals, and nobody is refused.
func TestPacedCrowd(t *testing.T) {
	tests := []struct {
		path
		clients int
		rate    float64
	}{
		{overIPv4, 100, 10},
		{overIPv6, 20, 20},
		{loopbackIPv4, 20, 20},
		{loopbackIPv6, 20, 20},
		{elsewhere, 20, 20},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			srv, cli, addr := test.hosts(t)
			k := keep(t, srv, "tcp", ":8080")
			a := startHolding(t, srv, paced(test.rate, 20*time.Second))
			c := newCrowd(t, cli, netip.AddrPortFrom(addr, port), test.clients)
			c.wait(t, 30*time.Second)
			interval := time.Duration(float64(time.Second) / test.rate)
			checkPaced(t, c, test.clients, interval)
			if test.clients == 100 { // of few, one that is late would be too many
				checkEven(t, c, interval)
			}
			await(t, "all are counted", func() (any, bool) {
				st := target(a)
				return st, st.AdmittedTotal == uint64(test.clients) && st.InFlight == test.clients && st.Waiting == 0
			})
			st := target(a)
			if rejectedInAll(st) != 0 || st.BypassedTotal != 0 || st.HeldTotal < uint64(test.clients-1) || st.HeldTotal > uint64(test.clients) {
				t.Errorf("rejected or bypassed, or not all but one held: %+v", st)
			}
			k.await(t, test.clients)
			c.close()
			k.empty(t, a)
			empty(t, a)
		})
	}
}

// Where nothing is held, those of a crowd come in who are a burst, and the
// others hear at once that they do not.
func TestPacedWithoutHolding(t *testing.T) {
	const clients = 100
	for _, test := range []struct {
		path
		burst int
	}{
		{overIPv4, 1}, {overIPv4, 10}, {overIPv6, 10}, {loopbackIPv4, 10}, {loopbackIPv6, 10},
	} {
		t.Run(fmt.Sprintf("%s, burst %d", test.name, test.burst), func(t *testing.T) {
			srv, cli, addr := test.hosts(t)
			k := keep(t, srv, "tcp", ":8080")
			a := startHolding(t, srv, func(r *config.Rule) {
				paced(10, 0)(r)
				r.Pace.Burst = test.burst
			})
			c := newCrowd(t, cli, netip.AddrPortFrom(addr, port), clients)
			c.wait(t, patience)
			if len(c.connected) != test.burst || c.refused != clients-test.burst {
				t.Fatalf("%v; want %d and %d", c, test.burst, clients-test.burst)
			}
			if slowest := quantile(c.rejected, 1); slowest > slack {
				t.Errorf("a refusal took %v", slowest)
			}
			checkRefusedByPace(t, a, uint64(clients-test.burst))
			k.await(t, test.burst)

			// A second later there is another burst, and with no idle time before
			// it one more a tenth of a second at most.
			if test.burst > 1 {
				time.Sleep(time.Second)
				more := newCrowd(t, cli, netip.AddrPortFrom(addr, port), clients)
				more.wait(t, patience)
				if len(more.connected) != test.burst {
					t.Errorf("a second later %v; want %d", more, test.burst)
				}
				more.close()
			}
			c.close()
			k.empty(t, a)
			empty(t, a)
		})
	}
}

// Of a crowd, those come in whose turn is not too far off.
func TestPacedMaxWait(t *testing.T) {
	const clients, admitted = 60, 6 // after 0, 100 ... 500 ms
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	a := startHolding(t, srv, paced(10, 500*time.Millisecond))
	c := newCrowd(t, cli, to, clients)
	c.wait(t, patience)
	if c.refused != clients-admitted {
		t.Fatalf("%v; want %d and %d", c, admitted, clients-admitted)
	}
	if slowest := quantile(c.rejected, 1); slowest > slack {
		t.Errorf("a refusal took %v", slowest)
	}
	checkPaced(t, &crowd{connected: c.connected, admitted: c.admitted}, admitted, 100*time.Millisecond)
	checkRefusedByPace(t, a, clients-admitted)
	k.await(t, admitted)
	c.close()
	k.empty(t, a)
	empty(t, a)
}

func checkRefusedByPace(t *testing.T, a *agent.Agent, n uint64) {
	t.Helper()
	await(t, "the pace has refused them", func() (any, bool) {
		r := target(a).RejectedTotal
		return r, r.Pace == n && r.Limit == 0 && r.HoldTimeout == 0
	})
}

// High rates are kept, and nobody comes in before the schedule allows it. The
// clients come in waves, the next when half of the last have had their turn: so
// some wait at all times, and never more than may, nor are too many files open.
func TestPacedRates(t *testing.T) {
	const waves = 5 // each a second's worth
	for _, rate := range []int{1000, 5000} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			n := waves*rate + 1
			interval := time.Second / time.Duration(rate)
			srv, cli, to := hosts(t)
			if err := srv.Sysctl("net.ipv4.tcp_syncookies", "0"); err != nil {
				t.Fatal(err)
			}
			g := greet(t, srv, rate/5)
			a := startHolding(t, srv, paced(float64(rate), 20*time.Second))
			c := newCrowd(t, cli, to, rate+1)
			began := c.began
			var before *crowd
			for wave := 1; wave < waves; wave++ {
				await(t, "half of the last wave has come in", func() (any, bool) { return g.count(), g.count() > wave*rate-rate/2 })
				if before != nil {
					before.forget(t)
				}
				before, c = c, newCrowd(t, cli, to, rate)
			}
			await(t, "all have come in", func() (any, bool) { return g.count(), g.count() == n })
			g.reset(0)
			times := g.since(began)
			// Exact: a turn may come late, but never early.
			for i, at := range times {
				if at < time.Duration(i)*interval {
					t.Errorf("number %d came in after %v, its turn is not before %v", i, at, time.Duration(i)*interval)
					break
				}
			}
			// And what is late on a busy machine catches up: as the end comes
			// near, somebody is where the rate has him.
			late, at := time.Hour, time.Duration(0)
			for i := n * 3 / 4; i < n; i++ {
				if l := times[i] - time.Duration(i)*interval; l < late {
					late, at = l, times[i]
				}
			}
			t.Logf("%v late after %v; at 1/4, 1/2, 3/4, the end: %v %v %v %v", late, at, times[n/4], times[n/2], times[n*3/4], times[n-1])
			if late > at*2/100 {
				t.Errorf("%v late after %v: more than 2%%", late, at)
			}
			empty(t, a)
			st := target(a)
			if rejectedInAll(st) != 0 || st.BypassedTotal != 0 || st.AdmittedTotal != uint64(n) {
				t.Errorf("rejected or bypassed, or not each admitted once: %+v", st)
			}
			if st.HeldTotal < uint64(n)*99/100 {
				t.Errorf("%d of %d have waited, want nearly all", st.HeldTotal, n)
			}
		})
	}
}

// greeter is a server that keeps its newest clients, and resets who is older: a
// SYN that was sent again, and comes a little later, still finds its connection.
type greeter struct {
	mu    sync.Mutex
	conns []*net.TCPConn
	times []time.Time // when each was accepted, those that are gone too
	err   error
}

// greet starts a greeter that keeps so many clients. It ends with the test.
func greet(t *testing.T, h *lab.Host, keep int) *greeter {
	t.Helper()
	ln, err := h.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	g := &greeter{}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			g.mu.Lock()
			g.times = append(g.times, time.Now())
			g.conns = append(g.conns, c.(*net.TCPConn))
			g.mu.Unlock()
			g.reset(keep)
		}
	})
	t.Cleanup(func() {
		ln.Close()
		accepting.Wait()
		g.reset(0)
		if g.err != nil {
			t.Error(g.err)
		}
	})
	return g
}

// reset resets all but the newest connections.
func (g *greeter) reset(keep int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.conns) > keep {
		g.err = errors.Join(g.err, g.conns[0].SetLinger(0), g.conns[0].Close())
		g.conns = g.conns[1:]
	}
}

func (g *greeter) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.times)
}

// since returns how long after a time each was accepted.
func (g *greeter) since(began time.Time) []time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	times := make([]time.Duration, len(g.times))
	for i, at := range g.times {
		times[i] = at.Sub(began)
	}
	return times
}
