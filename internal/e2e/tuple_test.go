package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
)

// A SYN on a tuple that the server has in TIME_WAIT is a new connection: it is
// counted, and refused when there is no room. The kernel answers the first
// refusal for the socket in TIME_WAIT, with an ACK; the client resets that and
// sends its SYN again at once, which is refused as any other.
func TestTimeWaitTuple(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	a := protect(t, srv, 1)
	k := keep(t, srv, "tcp", ":8080")
	finished, refused, tuples := uint64(0), uint64(0), 0
	for _, addr := range [][2]netip.Addr{{cli.Addr4, srv.Addr4}, {cli.Addr6, srv.Addr6}} {
		connect := func(fromPort uint16) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr[0], fromPort))}
			var c net.Conn
			err := cli.Do(func() (err error) {
				c, err = d.DialContext(ctx, "tcp", netip.AddrPortFrom(addr[1], port).String())
				return err
			})
			return c, err
		}
		// closeFirst leaves the tuple of a connection in TIME_WAIT on the server.
		closeFirst := func(c net.Conn) {
			t.Helper()
			k.await(t, 1)
			k.closeAll()
			_, _ = c.Read(make([]byte, 1))
			c.Close()
			finished++
			awaitInFlight(t, a, 0)
		}
		for _, p := range []uint16{40001, 40002} {
			c, err := connect(p)
			if err != nil {
				t.Fatal(err)
			}
			closeFirst(c)
			tuples++
		}
		await(t, "all of them in TIME_WAIT", func() (any, bool) {
			n := sockets(t, srv, port, tcpTimeWait)
			return n, n == tuples
		})

		again, err := connect(40001)
		if err != nil {
			t.Fatalf("connect on a tuple in TIME_WAIT: %v", err)
		}
		awaitInFlight(t, a, 1)
		if _, err := connect(40002); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("connect on a tuple in TIME_WAIT over the limit: %v, want it refused", err)
		}
		tuples-- // the client has reset the refused one
		refused += 2
		await(t, "each refused one is counted twice", func() (any, bool) {
			n := target(a).RejectedTotal.Limit
			return n, n == refused
		})
		staysInFlight(t, a, 1, 100*time.Millisecond)
		if n := connections(t, srv, port); n != 1 {
			t.Errorf("the kernel has %d connections, the agent 1", n)
		}
		closeFirst(again)
		if st := target(a); st.AdmittedTotal != finished || st.FinishedTotal != finished {
			t.Errorf("%d admitted, %d finished, want %d each", st.AdmittedTotal, st.FinishedTotal, finished)
		}
	}
}

// With SYN cookies the kernel makes a connection of any segment with the right
// acknowledgment when there is none: also of a client's FIN that comes again
// after all has ended, and of what the client answers then. That is a connection
// as any other. It is admitted, counted, and finished.
func TestCookieOfFIN(t *testing.T) {
	const clients, late = 10, 200 * time.Millisecond
	for _, cookies := range []string{"1", "2"} {
		t.Run("tcp_syncookies "+cookies, func(t *testing.T) {
			w := wired(t, func(f *lab.Frame) {
				if s, ok := f.Segment(); ok && s.Dst.Port() == port && s.Has(lab.FIN, lab.FIN) {
					f.Duplicate(late)
				}
			})
			srv := w.A.Host
			if err := srv.Sysctl("net.ipv4.tcp_syncookies", cookies); err != nil {
				t.Fatal(err)
			}
			a := protect(t, srv, clients)
			k := keep(t, srv, "tcp", ":8080")
			atLeast := uint64(0)
			for _, addr := range []netip.Addr{w.A.Addr4, w.A.Addr6} {
				c := newCrowd(t, w.B.Host, netip.AddrPortFrom(addr, port), clients)
				c.wait(t, patience)
				if len(c.connected) != clients {
					t.Fatal(c)
				}
				k.await(t, clients)
				c.close()
				await(t, "the server has seen them close", func() (any, bool) {
					n := sockets(t, srv, port, tcpCloseWait)
					return n, n == clients
				})
				k.empty(t, a)
				atLeast += clients
				if cookies == "2" {
					atLeast += clients
				}
				await(t, "the kernel has made connections of the FINs", func() (any, bool) {
					k.closeAll()
					n := opened(t, srv)
					return n, n >= atLeast
				})
				time.Sleep(2 * late)
				k.empty(t, a)
			}
			made, st := opened(t, srv), target(a)
			if cookies == "1" && made != atLeast {
				t.Errorf("the kernel has made %d connections, want %d", made, atLeast)
			}
			if st.AdmittedTotal != made || st.FinishedTotal != made {
				t.Errorf("%d admitted, %d finished, want the %d that the kernel has made", st.AdmittedTotal, st.FinishedTotal, made)
			}
		})
	}
}

// Go's listeners speak Multipath TCP where the kernel does. Clients of both
// kinds are counted once, and fill the limit together.
func TestMultipathTCP(t *testing.T) {
	const each = 5
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	if err := srv.Sysctl("net.mptcp.enabled", "1"); err != nil {
		t.Skipf("this kernel has no Multipath TCP: %v", err)
	}
	a := protect(t, srv, 2*each)
	k := keep(t, srv, "tcp", ":8080")
	connect := func(multipath bool) (*net.TCPConn, error) {
		d := new(net.Dialer)
		d.SetMultipathTCP(multipath)
		var c net.Conn
		err := cli.Do(func() (err error) {
			c, err = d.DialContext(t.Context(), "tcp", netip.AddrPortFrom(srv.Addr4, port).String())
			return err
		})
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { c.Close() })
		conn := c.(*net.TCPConn)
		if is, err := conn.MultipathTCP(); err != nil || is != multipath {
			t.Fatalf("the connection is Multipath TCP: %v, %v; want %v", is, err, multipath)
		}
		return conn, nil
	}
	var conns []*net.TCPConn
	for i := range 2 * each {
		c, err := connect(i%2 == 0)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	k.await(t, 2*each)
	awaitInFlight(t, a, 2*each)
	if n := connections(t, srv, port); n != 2*each {
		t.Errorf("the kernel has %d connections, the agent %d", n, 2*each)
	}
	for _, multipath := range []bool{false, true} {
		if _, err := connect(multipath); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("connect over the limit (Multipath TCP: %v): %v, want it refused", multipath, err)
		}
	}
	// By RST and by FIN, some of either kind.
	for i, c := range conns {
		if i < each {
			reset(t, c)
		} else if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	k.empty(t, a)
	awaitInFlight(t, a, 0)
	// Go tries again without Multipath TCP.
	if st := target(a); st.AdmittedTotal != 2*each || st.FinishedTotal != 2*each || st.RejectedTotal.Limit != 3 {
		t.Errorf("%d admitted, %d finished, %d rejected; want %d, %d, 3",
			st.AdmittedTotal, st.FinishedTotal, st.RejectedTotal.Limit, 2*each, 2*each)
	}
}

// The subflows of an MPTCP connection are connections to the limit: each takes a
// slot and gives it back. One that finds none is refused, and the connection goes
// on by those that it has.
func TestMultipathSubflows(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	if err := srv.Sysctl("net.mptcp.enabled", "1"); err != nil {
		t.Skipf("this kernel has no Multipath TCP: %v", err)
	}
	other := netip.MustParsePrefix("10.83.1.3/24")
	if err := cli.AddAddr("srv", other); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host *lab.Host
		args []string
	}{
		{srv, []string{"limits", "set", "subflow", "4", "add_addr_accepted", "4"}},
		{cli, []string{"limits", "set", "subflow", "4"}},
		{cli, []string{"endpoint", "add", other.Addr().String(), "dev", "srv", "subflow"}},
	} {
		if out, err := c.host.Command(t.Context(), "ip", append([]string{"mptcp"}, c.args...)...).CombinedOutput(); err != nil {
			t.Fatalf("ip mptcp %v: %v: %s", c.args, err, out)
		}
	}
	k := keep(t, srv, "tcp", ":8080")
	connect := func() *net.TCPConn {
		t.Helper()
		d := new(net.Dialer)
		d.SetMultipathTCP(true)
		var c net.Conn
		err := cli.Do(func() (err error) {
			c, err = d.DialContext(t.Context(), "tcp", netip.AddrPortFrom(srv.Addr4, port).String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if is, err := c.(*net.TCPConn).MultipathTCP(); err != nil || !is {
			t.Fatalf("not Multipath TCP: %v", err)
		}
		return c.(*net.TCPConn)
	}
	// say has the client speak: only then is the connection known to be one, and
	// another subflow opened.
	say := func(c *net.TCPConn) {
		t.Helper()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ limit, subflows, refused int }{
		{limit: 4, subflows: 2},
		{limit: 1, subflows: 1, refused: 1},
	} {
		t.Run(fmt.Sprintf("limit %d", tt.limit), func(t *testing.T) {
			a := protect(t, srv, tt.limit)
			c := connect()
			say(c)
			k.await(t, 1)
			await(t, "the subflows are there", func() (any, bool) {
				st := target(a)
				return st, st.InFlight == tt.subflows && st.Pending == 0 && int(st.RejectedTotal.Limit) >= tt.refused
			})
			if n := matches(t, a, srv); n != tt.subflows {
				t.Errorf("%d in flight, want %d", n, tt.subflows)
			}
			k.mu.Lock()
			s := k.conns[0]
			k.mu.Unlock()
			say(c)
			_ = s.SetDeadline(time.Now().Add(patience))
			if _, err := io.ReadFull(s, make([]byte, 2)); err != nil {
				t.Errorf("the connection: %v", err)
			}
			c.Close()
			k.empty(t, a)
			if n := matches(t, a, srv); n != 0 {
				t.Errorf("%d in flight, want 0", n)
			}
			st := target(a)
			if int(st.AdmittedTotal) != tt.subflows || st.FinishedTotal != st.AdmittedTotal {
				t.Errorf("want %d admitted and finished: %+v", tt.subflows, st)
			}
		})
	}
}
