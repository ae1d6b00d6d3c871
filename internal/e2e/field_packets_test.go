package e2e

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
)

// What other limiters were reported to count wrongly because of single packets.

// A RST that the kernel does not take for one frees no slot: out of the window,
// or in it but not at its start.
func TestFieldSpuriousReset(t *testing.T) {
	const limit = 3
	var mu sync.Mutex
	next := make(map[netip.AddrPort]uint32) // what the client will send next
	w := wired(t, func(f *lab.Frame) {
		s, ok := f.Segment()
		if !ok || f.From.Name != "cli" || s.Has(lab.RST, lab.RST) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		next[s.Src] = s.Seq + uint32(len(s.Payload))
		if s.Has(lab.SYN, lab.SYN) {
			next[s.Src]++
		}
	})
	srv, cli := w.A.Host, w.B.Host
	for _, addr := range []netip.Addr{w.A.Addr4, w.A.Addr6} {
		t.Run(addr.String(), func(t *testing.T) {
			a := protect(t, srv, limit)
			startChurnServer(t, srv)
			to := netip.AddrPortFrom(addr, port)
			var conns []*net.TCPConn
			for range limit {
				c := dial(t, cli, to)
				conns = append(conns, c)
				if err := exchange(c, clientCloses); err != nil {
					t.Fatal(err)
				}
			}
			awaitInFlight(t, a, limit)
			for _, c := range conns {
				from := c.LocalAddr().(*net.TCPAddr).AddrPort()
				mu.Lock()
				seq, known := next[from]
				mu.Unlock()
				if !known {
					t.Fatalf("no segment from %v was seen", from)
				}
				for _, off := range []uint32{1 << 30, 1 << 31, 100} {
					rst := lab.Segment{Src: from, Dst: to, Seq: seq + off, Flags: lab.RST}
					if err := cli.SendSegment(rst); err != nil {
						t.Fatal(err)
					}
				}
			}
			staysInFlight(t, a, limit, 200*time.Millisecond)
			if n := connections(t, srv, port); n != limit {
				t.Errorf("the kernel has %d connections, the agent %d", n, limit)
			}
			if _, err := cli.Dial(t.Context(), "tcp", to.String()); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("one more connection: %v, want it refused", err)
			}
			// The server waits for the end of what it has answered; that it
			// comes shows that data still flows.
			for _, c := range conns {
				if err := c.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadAll(c); err != nil {
					t.Errorf("a connection after the RSTs: %v", err)
				}
			}
			awaitInFlight(t, a, 0)
			if st := target(a); st.AdmittedTotal != limit || st.FinishedTotal != limit {
				t.Errorf("%d admitted, %d finished, want %d each", st.AdmittedTotal, st.FinishedTotal, limit)
			}
		})
	}
}

// A handshake that takes three SYNs and three seconds is one connection.
func TestFieldLostSynAcks(t *testing.T) {
	const outage = 3 * time.Second
	var mu sync.Mutex
	var begin time.Time
	syns, lost := 0, 0
	w := wired(t, func(f *lab.Frame) {
		s, ok := f.Segment()
		if !ok || !s.Has(lab.SYN, lab.SYN) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case f.From.Name == "cli":
			syns++
		case time.Since(begin) < outage:
			lost++
			f.Drop()
		}
	})
	srv, cli := w.A.Host, w.B.Host
	a := protect(t, srv, 2)
	k := keep(t, srv, "tcp", ":8080")
	mu.Lock()
	begin = time.Now()
	mu.Unlock()
	c := dial(t, cli, netip.AddrPortFrom(w.A.Addr4, port))
	took := time.Since(begin)
	k.await(t, 1)
	awaitInFlight(t, a, 1)
	mu.Lock()
	t.Logf("%d SYNs, %d SYN-ACKs lost, connected after %v", syns, lost, took)
	if syns < 3 || took < outage {
		t.Errorf("%d SYNs in %v: the handshake was not disturbed", syns, took)
	}
	mu.Unlock()
	if st := target(a); st.AdmittedTotal != 1 || st.RejectedTotal.Limit != 0 {
		t.Errorf("%d admitted, %d rejected, want 1 and 0", st.AdmittedTotal, st.RejectedTotal.Limit)
	}
	staysInFlight(t, a, 1, reservationTTL+200*time.Millisecond)
	if n := connections(t, srv, port); n != 1 {
		t.Errorf("the kernel has %d connections, the agent 1", n)
	}
	c.Close()
	k.empty(t, a)
	awaitInFlight(t, a, 0)
}
