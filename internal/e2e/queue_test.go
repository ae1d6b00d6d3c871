package e2e

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
)

// reservationTTL is how long a handshake may hold a slot: RESERVATION_TTL of
// bpf/admit.h.
const reservationTTL = 1500 * time.Millisecond

// listenOnly makes a listener that nobody accepts from, with a queue of
// backlog+1 connections (the kernel's way of counting).
func listenOnly(t *testing.T, h *lab.Host, backlog int) (closeListener func()) {
	t.Helper()
	fd := -1
	err := h.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet6{Port: port}); err != nil {
			return err
		}
		return unix.Listen(fd, backlog)
	})
	if err != nil {
		t.Fatal(err)
	}
	closeListener = func() {
		if fd >= 0 {
			_ = unix.Close(fd)
			fd = -1
		}
	}
	t.Cleanup(closeListener)
	return closeListener
}

// A full accept queue: what the kernel does not establish is not counted for
// longer than a handshake may take, and the rest until the listener closes.
func TestAcceptQueue(t *testing.T) {
	const backlog, limit, clients = 5, 20, 30
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	a := protect(t, srv, limit)
	closeListener := listenOnly(t, srv, backlog)
	await(t, "the listener is noticed", func() (any, bool) {
		q := target(a).AcceptQueue
		return q, q.Max == backlog
	})
	peak := watchPeak(t)

	c := newCrowd(t, cli, netip.AddrPortFrom(srv.Addr4, port), clients)
	c.wait(t, 200*time.Millisecond)
	// The queue takes what it can; SYNs beyond it are dropped by the kernel
	// but hold their slots for a while, as they would be sent again.
	if c.refused != clients-limit || len(c.connected) < backlog+1 || len(c.failed) > 0 {
		t.Errorf("%v; want %d refused, at least %d connected", c, clients-limit, backlog+1)
	}
	if n := peak(); n != limit {
		t.Errorf("at most %d were in flight, want %d", n, limit)
	}
	c.close()
	awaitInFlight(t, a, backlog+1)
	if n := connections(t, srv, port); n != backlog+1 {
		t.Errorf("the kernel has %d connections, the agent %d", n, backlog+1)
	}
	staysInFlight(t, a, backlog+1, 200*time.Millisecond)
	await(t, "the overflows are told", func() (any, bool) {
		q := target(a).AcceptQueue
		return q, q.OverflowsTotal > 0
	})

	closeListener()
	awaitInFlight(t, a, 0)
	if st := target(a); st.AdmittedTotal != backlog+1 || st.FinishedTotal != backlog+1 {
		t.Errorf("%d admitted, %d finished, want %d each", st.AdmittedTotal, st.FinishedTotal, backlog+1)
	}
}

// A listener that closes over a full queue, with all its clients still there.
func TestListenerClosesOverQueue(t *testing.T) {
	const backlog = 49
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	a := protect(t, srv, backlog+1)
	for _, addr := range []netip.Addr{srv.Addr4, srv.Addr6} {
		closeListener := listenOnly(t, srv, backlog)
		c := newCrowd(t, cli, netip.AddrPortFrom(addr, port), 2*(backlog+1))
		c.wait(t, patience)
		if len(c.connected) != backlog+1 || c.refused != backlog+1 {
			t.Errorf("%v; want %d each connected and refused", c, backlog+1)
		}
		awaitInFlight(t, a, backlog+1)
		closeListener()
		awaitInFlight(t, a, 0)
		if n := connections(t, srv, port); n != 0 {
			t.Errorf("the kernel has %d connections after the listener is closed", n)
		}
		c.close()
	}
}

// Handshakes that nobody ends hold slots, for real clients too, but not for long.
func TestHalfOpen(t *testing.T) {
	const limit, syns = 20, 30
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	a := protect(t, srv, limit)
	k := keep(t, srv, "tcp", ":8080")
	for _, family := range []struct {
		to   netip.Addr
		from func(i byte) netip.Addr // addresses of the link that nobody has
	}{
		{srv.Addr4, func(i byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 83, 1, 100 + i}) }},
		{srv.Addr6, func(i byte) netip.Addr {
			return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x83, 3: 1, 14: 1, 15: i})
		}},
	} {
		before := target(a)
		peak := watchPeak(t)
		begin := time.Now()
		to := netip.AddrPortFrom(family.to, port)
		for i := range byte(syns) {
			err := cli.SendSegment(lab.Segment{
				Src: netip.AddrPortFrom(family.from(i), 1234), Dst: to, Seq: uint32(i), Flags: lab.SYN,
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		await(t, "all SYNs are judged", func() (any, bool) {
			st := target(a)
			return st, st.Pending == limit && st.RejectedTotal.Limit-before.RejectedTotal.Limit == syns-limit
		})
		c := newCrowd(t, cli, to, 1)
		c.wait(t, patience)
		if c.refused != 1 {
			t.Errorf("a client among half-open handshakes: %v; want it refused", c)
		}
		awaitInFlight(t, a, 0)
		if took := time.Since(begin); took < reservationTTL || took > reservationTTL+500*time.Millisecond {
			t.Errorf("the slots were free after %v, want about %v", took, reservationTTL)
		}
		if n := peak(); n != limit {
			t.Errorf("at most %d were in flight, want %d", n, limit)
		}
		c = newCrowd(t, cli, to, limit)
		c.wait(t, patience)
		if len(c.connected) != limit {
			t.Errorf("after the half-open handshakes: %v; want all connected", c)
		}
		k.await(t, limit)
		awaitInFlight(t, a, limit)
		c.close()
		k.empty(t, a)
		awaitInFlight(t, a, 0)
		if st := target(a); st.AdmittedTotal-before.AdmittedTotal != limit {
			t.Errorf("%d admitted, want %d", st.AdmittedTotal-before.AdmittedTotal, limit)
		}
	}
}
