package e2e

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/agent"
)

const (
	burstLimit = 50
	burstSize  = 1000
	burstRuns  = 5
)

// A thousand clients connect at the same moment to a server that may have
// fifty: fifty are let in, never more, and all others are refused.
func TestBurst(t *testing.T) {
	listeners := []struct {
		name, network string
		address       func(four, six netip.Addr) netip.Addr
	}{
		{"v4", "tcp4", func(four, _ netip.Addr) netip.Addr { return four }},
		{"v6", "tcp6", func(_, six netip.Addr) netip.Addr { return six }},
		{"v4 to dual-stack", "tcp", func(four, _ netip.Addr) netip.Addr { return four }},
	}
	veth := func(t *testing.T) burstPath {
		l := lab.ForTest(t, "srv", "cli")
		srv := l.Host("srv")
		return burstPath{srv: srv, cli: l.Host("cli"), four: srv.Addr4, six: srv.Addr6}
	}
	paths := []struct {
		name string
		path func(*testing.T) burstPath
	}{
		{"veth", veth},
		{"loopback", func(t *testing.T) burstPath {
			h := lab.ForTest(t, "srv").Host("srv")
			// A tuple in TIME_WAIT is refused twice, see tuple_test.go.
			if err := h.Sysctl("net.ipv4.tcp_tw_reuse", "0"); err != nil {
				t.Fatal(err)
			}
			return burstPath{srv: h, cli: h, four: netip.MustParseAddr("127.0.0.1"), six: netip.IPv6Loopback()}
		}},
		// No handshake ends before all SYNs are there.
		{"100 ms away", func(t *testing.T) burstPath {
			w := wired(t, func(f *lab.Frame) {
				if s, ok := f.Segment(); ok && s.Has(lab.SYN|lab.ACK, lab.SYN|lab.ACK) {
					f.Delay(100 * time.Millisecond)
				}
			})
			return burstPath{srv: w.A.Host, cli: w.B.Host, four: w.A.Addr4, six: w.A.Addr6}
		}},
		// The kernel keeps no record of a handshake: the SYN and the last ACK
		// both look for the listener, and so may a FIN that comes twice, which
		// makes another connection: TestCookieOfFIN.
		{"SYN cookies", func(t *testing.T) burstPath {
			p := veth(t)
			if err := p.srv.Sysctl("net.ipv4.tcp_syncookies", "2"); err != nil {
				t.Fatal(err)
			}
			p.cookies = true
			return p
		}},
	}
	for _, p := range paths {
		for _, l := range listeners {
			t.Run(p.name+" "+l.name, func(t *testing.T) {
				path := p.path(t)
				a := protect(t, path.srv, burstLimit)
				k := keep(t, path.srv, l.network, ":8080")
				for range burstRuns {
					testBurst(t, a, k, path, netip.AddrPortFrom(l.address(path.four, path.six), port))
				}
			})
		}
	}
}

// burstPath is where a burst goes from and to.
type burstPath struct {
	srv, cli  *lab.Host
	four, six netip.Addr
	cookies   bool // instead of a record of each handshake
}

func testBurst(t *testing.T, a *agent.Agent, k *keeper, p burstPath, to netip.AddrPort) {
	t.Helper()
	before, openedBefore := target(a), opened(t, p.srv)
	peak := watchPeak(t)
	c := newCrowd(t, p.cli, to, burstSize)
	c.wait(t, patience)
	refused := c.refused
	if p.cookies && lab.Slow() {
		// Who comes back with its cookie too late for what was reserved is reset.
		refused += c.failed[unix.ECONNRESET]
	}
	if len(c.connected) != burstLimit || refused != burstSize-burstLimit {
		t.Errorf("%v; want %d and %d", c, burstLimit, burstSize-burstLimit)
	}
	k.await(t, burstLimit)
	awaitInFlight(t, a, burstLimit)
	if n := connections(t, p.srv, port); n != burstLimit {
		t.Errorf("the kernel has %d connections, the agent %d", n, burstLimit)
	}
	if n := peak(); n != burstLimit {
		t.Errorf("at most %d were in flight, want %d", n, burstLimit)
	}
	if n := target(a).FinishedTotal - before.FinishedTotal; n != 0 {
		t.Errorf("%d finished while all were held", n)
	}

	c.close()
	k.empty(t, a)
	awaitInFlight(t, a, 0)
	made := opened(t, p.srv) - openedBefore
	if made != burstLimit && !p.cookies || made < burstLimit {
		t.Errorf("the kernel has made %d connections, want %d", made, burstLimit)
	}
	st := target(a)
	if n := st.AdmittedTotal - before.AdmittedTotal; n != made {
		t.Errorf("%d admitted, want the %d that the kernel has made", n, made)
	}
	if n := st.FinishedTotal - before.FinishedTotal; n != made {
		t.Errorf("%d finished, want %d", n, made)
	}
	if n := st.RejectedTotal.Limit - before.RejectedTotal.Limit; n != burstSize-burstLimit {
		t.Errorf("%d rejected, want %d", n, burstSize-burstLimit)
	}
	if n := connections(t, p.srv, port); n != 0 {
		t.Errorf("the kernel has %d connections when none is left", n)
	}
}
