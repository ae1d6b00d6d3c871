package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/agent"
)

// What listeners do that are not plain ones, or do not stay what they were.

// listenRaw makes a dual-stack listener with a backlog and what set sets on it
// before it listens.
func listenRaw(t *testing.T, h *lab.Host, backlog int, set func(fd int) error) net.Listener {
	t.Helper()
	var ln net.Listener
	err := h.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "listener")
		defer f.Close()
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		if err := set(fd); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet6{Port: port}); err != nil {
			return err
		}
		if err := unix.Listen(fd, backlog); err != nil {
			return err
		}
		ln, err = net.FileListener(f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func setTCP(option, value int) func(int) error {
	return func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value) }
}

// matches waits until the agent, the programs and the kernel say the same, and
// nothing is reserved any more.
func matches(t *testing.T, a *agent.Agent, h *lab.Host) (inFlight int) {
	t.Helper()
	await(t, "agent and kernel agree", func() (any, bool) {
		st, n := target(a), connections(t, h, port)
		inFlight = n
		return fmt.Sprintf("%d in the kernel, %+v", n, st), st.InFlight == n && st.Pending == 0 && inKernel(t) == n
	})
	return inFlight
}

// A group of listeners on one port has one limit, whichever of them a client
// is given to.
func TestReusePortGroup(t *testing.T) {
	const group, limit, clients = 4, 20, 300
	srv, cli, _ := hosts(t)
	a := protect(t, srv, limit)
	var keepers []*keeper
	for range group {
		ln := listenRaw(t, srv, 64, func(fd int) error {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		})
		keepers = append(keepers, keepOn(t, ln))
	}
	peak := watchPeak(t)
	refused := 0
	for range 3 {
		four := newCrowd(t, cli, netip.AddrPortFrom(srv.Addr4, port), clients/2)
		six := newCrowd(t, cli, netip.AddrPortFrom(srv.Addr6, port), clients/2)
		four.wait(t, patience)
		six.wait(t, patience)
		if n := len(four.connected) + len(six.connected); n != limit || four.refused+six.refused != clients-limit {
			t.Errorf("%v; %v; want %d connected", four, six, limit)
		}
		refused += four.refused + six.refused
		if n := matches(t, a, srv); n != limit {
			t.Errorf("%d in flight, want %d", n, limit)
		}
		await(t, "more than one listener has connections, else this tests nothing", func() (any, bool) {
			used := 0
			for _, k := range keepers {
				if k.held() > 0 {
					used++
				}
			}
			return used, used > 1
		})
		four.close()
		six.close()
		await(t, "all is closed", func() (any, bool) {
			for _, k := range keepers {
				k.closeAll()
			}
			n := inKernel(t)
			return n, n == 0
		})
	}
	// One of the group goes, with what it has not accepted; the limit is still one.
	keepers[0].ln.Close()
	c := newCrowd(t, cli, netip.AddrPortFrom(srv.Addr4, port), clients)
	c.wait(t, patience)
	refused += c.refused
	if len(c.connected) != limit {
		t.Errorf("without one of the group: %v", c)
	}
	c.close()
	await(t, "all is closed", func() (any, bool) {
		for _, k := range keepers {
			k.closeAll()
		}
		n := inKernel(t)
		return n, n == 0
	})
	matches(t, a, srv)
	st := target(a)
	if peak := peak(); peak != limit || st.AdmittedTotal != 4*limit || st.FinishedTotal != 4*limit || st.RejectedTotal.Limit != uint64(refused) {
		t.Errorf("peak %d, want %d; %d refused; %+v", peak, limit, refused, st)
	}
}

// TCP Fast Open: a SYN with data takes a slot, and over the limit its data never
// reaches the server.
func TestFastOpen(t *testing.T) {
	const limit = 2
	srv, cli, _ := hosts(t)
	for _, h := range []*lab.Host{srv, cli} {
		// Client and server, both without a cookie (ip-sysctl, tcp_fastopen).
		if err := h.Sysctl("net.ipv4.tcp_fastopen", "519"); err != nil {
			t.Fatal(err)
		}
	}
	a := protect(t, srv, limit)
	ln := listenRaw(t, srv, 64, setTCP(unix.TCP_FASTOPEN, 64))
	for _, addr := range []netip.Addr{srv.Addr4, srv.Addr6} {
		t.Run(addr.String(), func(t *testing.T) {
			before := target(a)
			var clients []int
			send := func() error {
				return cli.Do(func() error {
					family := unix.AF_INET6
					if addr.Is4() {
						family = unix.AF_INET
					}
					fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
					if err != nil {
						return err
					}
					err = unix.Sendto(fd, []byte("order"), unix.MSG_FASTOPEN, sockaddr(netip.AddrPortFrom(addr, port)))
					if err == nil { // the SYN is on its way; the answer comes with the next call
						tv := unix.Timeval{Sec: 1}
						_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
						_, err = unix.Read(fd, make([]byte, 5))
					}
					if err != nil {
						return errors.Join(err, unix.Close(fd))
					}
					clients = append(clients, fd)
					return nil
				})
			}
			accept := func() net.Conn {
				t.Helper()
				_ = ln.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
				c, err := ln.Accept()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				b := make([]byte, 5)
				_ = c.SetDeadline(time.Now().Add(patience))
				if n, err := c.Read(b); err != nil || string(b[:n]) != "order" {
					t.Fatalf("the server reads %q, %v", b[:n], err)
				}
				if _, err := c.Write(b); err != nil {
					t.Fatal(err)
				}
				return c
			}
			opened := fastOpened(t, srv)
			var conns []net.Conn
			for range limit {
				got := make(chan error, 1)
				go func() { got <- send() }()
				conns = append(conns, accept())
				if err := <-got; err != nil {
					t.Fatal(err)
				}
			}
			if n := fastOpened(t, srv) - opened; n != limit {
				t.Fatalf("%d were opened fast: that tests nothing", n)
			}
			if n := matches(t, a, srv); n != limit {
				t.Errorf("%d in flight, want %d", n, limit)
			}
			for range 3 {
				if err := send(); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("over the limit: %v, want it refused", err)
				}
			}
			_ = ln.(*net.TCPListener).SetDeadline(time.Now().Add(slack))
			if c, err := ln.Accept(); err == nil {
				b := make([]byte, 5)
				n, err := c.Read(b)
				t.Fatalf("over the limit the server accepted one, and reads %q, %v", b[:n], err)
			}
			for _, fd := range clients {
				_ = unix.Close(fd)
			}
			for _, c := range conns {
				c.Close()
			}
			if n := matches(t, a, srv); n != 0 {
				t.Errorf("%d in flight, want 0", n)
			}
			st := target(a)
			if st.AdmittedTotal-before.AdmittedTotal != limit || st.FinishedTotal-before.FinishedTotal != limit ||
				st.RejectedTotal.Limit-before.RejectedTotal.Limit != 3 {
				t.Errorf("want %d admitted and finished, 3 rejected, since %+v: %+v", limit, before, st)
			}
		})
	}
}

// fastOpened is how many connections a host has accepted with data in their SYN.
func fastOpened(t *testing.T, h *lab.Host) int {
	t.Helper()
	return int(counter(t, h, "TcpExt", "TCPFastOpenPassive"))
}

// The accept queue of a server that does not come to accept is full: nothing is
// counted that is no connection, and no more than the limit.
func TestAcceptQueueOverflow(t *testing.T) {
	const limit, backlog, clients = 50, 16, 200
	srv, cli, to := hosts(t)
	a := protect(t, srv, limit)
	ln := listenRaw(t, srv, backlog, func(int) error { return nil })
	peak := watchPeak(t)
	c := newCrowd(t, cli, to, clients)
	c.wait(t, 300*time.Millisecond)
	// The reservations of those that did not fit in are over soon; the kernel goes
	// on to keep their SYNs.
	await(t, "the queue is full, and it alone is counted", func() (any, bool) {
		n := inKernel(t)
		return n, n == backlog+1
	})
	if n := matches(t, a, srv); n != backlog+1 {
		t.Errorf("%d in flight, want %d", n, backlog+1)
	}
	if st := target(a); st.AcceptQueue.Max != backlog {
		t.Errorf("want an accept queue of %d: %+v", backlog, st)
	}
	t.Logf("%v", c)
	// It accepts at last: whoever still tries comes in, up to the limit.
	k := keepOn(t, ln)
	await(t, "all that still try are in, or refused", func() (any, bool) {
		c.wait(t, 10*time.Millisecond)
		n := connections(t, srv, port)
		return fmt.Sprint(n, " ", c), len(c.connecting) == 0 && inKernel(t) == n
	})
	if n := matches(t, a, srv); n > limit || n < backlog+1 {
		t.Errorf("%d in flight, want %d to %d", n, backlog+1, limit)
	}
	if n := peak(); n > limit {
		t.Errorf("at most %d were in flight, want %d", n, limit)
	}
	t.Logf("%v", c)
	c.close()
	k.empty(t, a)
	if n := matches(t, a, srv); n != 0 {
		t.Errorf("%d in flight, want 0", n)
	}
}

// A listener that is closed takes with it what it has not accepted, and nothing
// else. The next one finds the count as it is.
func TestListenerReopened(t *testing.T) {
	const limit, accepted, queued = 20, 8, 5
	srv, cli, to := hosts(t)
	a := protect(t, srv, limit)
	ln := listenRaw(t, srv, 64, func(int) error { return nil })
	var inside []net.Conn
	c := newCrowd(t, cli, to, accepted+queued)
	c.wait(t, patience)
	for range accepted {
		conn, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		inside = append(inside, conn)
		t.Cleanup(func() { conn.Close() })
	}
	if n := matches(t, a, srv); n != accepted+queued {
		t.Errorf("%d in flight, want %d", n, accepted+queued)
	}
	ln.Close()
	if n := matches(t, a, srv); n != accepted {
		t.Errorf("without the listener: %d in flight, want %d", n, accepted)
	}
	// Nobody listens: who comes is refused, and holds nothing for long.
	nobody := newCrowd(t, cli, to, limit)
	nobody.wait(t, patience)
	if nobody.refused != limit {
		t.Errorf("without a listener: %v", nobody)
	}
	matches(t, a, srv)
	k := keepOn(t, listenRaw(t, srv, 64, func(int) error { return nil }))
	peak := watchPeak(t)
	again := newCrowd(t, cli, to, 3*limit)
	again.wait(t, patience)
	if len(again.connected) != limit-accepted {
		t.Errorf("with a new listener: %v; want %d", again, limit-accepted)
	}
	if n := matches(t, a, srv); n != limit {
		t.Errorf("%d in flight, want %d", n, limit)
	}
	if n := peak(); n > limit {
		t.Errorf("at most %d were in flight, want %d", n, limit)
	}
	for _, conn := range inside {
		conn.Close()
	}
	c.close()
	again.close()
	k.empty(t, a)
	matches(t, a, srv)
	st := target(a)
	if all := uint64(accepted + queued + limit - accepted); st.AdmittedTotal != all || st.FinishedTotal != all {
		t.Errorf("want %d admitted and finished: %+v", all, st)
	}
}
