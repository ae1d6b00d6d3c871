package e2e

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"headgate/internal/lab"
)

// Clients that reset their connections do not free the slots of a server that
// is still at work for them; what it never accepted is no work.
func TestClientReset(t *testing.T) {
	const clients = 20
	t.Run("accepted", func(t *testing.T) {
		l := lab.ForTest(t, "srv", "cli")
		srv, cli := l.Host("srv"), l.Host("cli")
		a := protect(t, srv, 50)
		k := keep(t, srv, "tcp", ":8080")
		conns := dialAll(t, cli, srv, clients)
		k.await(t, clients)
		awaitInFlight(t, a, clients)
		for _, c := range conns {
			reset(t, c)
		}
		await(t, "every reset has arrived", func() (any, bool) {
			n := connections(t, srv, port)
			return n, n == 0
		})
		staysInFlight(t, a, clients, 500*time.Millisecond)
		if st := target(a); st.FinishedTotal != 0 {
			t.Errorf("%d finished before the server has closed any", st.FinishedTotal)
		}
		k.close(5)
		awaitInFlight(t, a, clients-5)
		k.empty(t, a)
		awaitInFlight(t, a, 0)
		if st := target(a); st.AdmittedTotal != clients || st.FinishedTotal != clients {
			t.Errorf("%d admitted, %d finished, want %d each", st.AdmittedTotal, st.FinishedTotal, clients)
		}
	})
	t.Run("not accepted", func(t *testing.T) {
		l := lab.ForTest(t, "srv", "cli")
		srv, cli := l.Host("srv"), l.Host("cli")
		a := protect(t, srv, 50)
		ln, err := srv.Listen("tcp", ":8080")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		conns := dialAll(t, cli, srv, clients)
		awaitInFlight(t, a, clients)
		for _, c := range conns[:clients/2] {
			reset(t, c)
		}
		awaitInFlight(t, a, clients/2)
		// A FIN is no end: the server can still answer.
		for _, c := range conns[clients/2:] {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		staysInFlight(t, a, clients/2, 200*time.Millisecond)
		if n := connections(t, srv, port); n != clients/2 {
			t.Errorf("the kernel has %d connections, the agent %d", n, clients/2)
		}
		if err := ln.Close(); err != nil {
			t.Fatal(err)
		}
		awaitInFlight(t, a, 0)
		if st := target(a); st.AdmittedTotal != clients || st.FinishedTotal != clients {
			t.Errorf("%d admitted, %d finished, want %d each", st.AdmittedTotal, st.FinishedTotal, clients)
		}
	})
}

// dialAll connects so many clients, half of them over IPv4 and half over IPv6.
func dialAll(t *testing.T, from, to *lab.Host, n int) []*net.TCPConn {
	t.Helper()
	conns := make([]*net.TCPConn, n)
	for i := range conns {
		addr := to.Addr4
		if i%2 == 1 {
			addr = to.Addr6
		}
		conns[i] = dial(t, from, netip.AddrPortFrom(addr, port))
	}
	return conns
}
