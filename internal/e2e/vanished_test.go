package e2e

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
)

// Clients whose network disappears say no good-bye. They are counted for as long
// as their sockets exist; the server's keepalive ends these: at once where nobody
// has accepted the connection, else with the application's close(2).
func TestVanishedClients(t *testing.T) {
	const accepted, queued = 10, 4
	var cut atomic.Bool
	w := wired(t, func(f *lab.Frame) {
		if cut.Load() {
			f.Drop()
		}
	})
	srv, cli := w.A.Host, w.B.Host
	a := protect(t, srv, accepted+queued)
	ln := listenRaw(t, srv, 64, func(fd int) error {
		for option, value := range map[int]int{unix.TCP_KEEPIDLE: 1, unix.TCP_KEEPINTVL: 1, unix.TCP_KEEPCNT: 2} {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value); err != nil {
				return err
			}
		}
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	})
	addrs := []netip.AddrPort{netip.AddrPortFrom(w.A.Addr4, port), netip.AddrPortFrom(w.A.Addr6, port)}
	ended := make(chan error, accepted)
	for i := range accepted {
		dial(t, cli, addrs[i%2])
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		// Go would set a time of its own.
		keepalive := net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 2}
		if err := c.(*net.TCPConn).SetKeepAliveConfig(keepalive); err != nil {
			t.Fatal(err)
		}
		go func() { // an application that waits for a request, and closes when there is none
			_, err := c.Read(make([]byte, 1))
			c.Close()
			ended <- err
		}()
	}
	for i := range queued {
		dial(t, cli, addrs[i%2])
	}
	awaitInFlight(t, a, accepted+queued)
	begin := time.Now()
	cut.Store(true)
	staysInFlight(t, a, accepted+queued, 1500*time.Millisecond)
	if n := connections(t, srv, port); n != accepted+queued {
		t.Errorf("the kernel has %d connections, want %d", n, accepted+queued)
	}
	if !knock(t, srv, netip.AddrPortFrom(srv.Addr4, port)) {
		t.Error("one more was let in beside those that have vanished")
	}
	awaitInFlight(t, a, 0)
	if n := matches(t, a, srv); n != 0 {
		t.Errorf("the kernel has %d connections, want 0", n)
	}
	t.Logf("free after %v", time.Since(begin))
	for range accepted {
		if err := <-ended; !errors.Is(err, unix.ETIMEDOUT) {
			t.Errorf("a connection ended by %v, want %v", err, unix.ETIMEDOUT)
		}
	}
	if st := target(a); st.AdmittedTotal != accepted+queued || st.FinishedTotal != accepted+queued {
		t.Errorf("want %d admitted and finished: %+v", accepted+queued, st)
	}
}
