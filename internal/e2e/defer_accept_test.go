package e2e

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
)

// A server that wants its clients to speak first: they are counted from their
// SYN on, and the limit holds.
func TestDeferAccept(t *testing.T) {
	const limit, clients = 10, 100
	srv, cli, to := hosts(t)
	a := protect(t, srv, limit)
	k := keepOn(t, listenRaw(t, srv, 512, setTCP(unix.TCP_DEFER_ACCEPT, 5)))
	peak := watchPeak(t)
	c := newCrowd(t, cli, to, clients)
	c.wait(t, patience)
	if len(c.connected) != limit || c.refused != clients-limit {
		t.Errorf("%v; want %d and %d", c, limit, clients-limit)
	}
	if n, accepted := inKernel(t), connections(t, srv, port); n != limit || accepted != 0 {
		t.Errorf("nobody has spoken: %d in flight, want %d; %d established, want 0", n, limit, accepted)
	}
	speak := func(c *crowd) {
		t.Helper()
		for _, fd := range c.connected {
			if _, err := unix.Write(fd, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	speak(c)
	k.await(t, limit)
	if n := matches(t, a, srv); n != limit {
		t.Errorf("%d in flight, want %d", n, limit)
	}
	if n := peak(); n != limit {
		t.Errorf("at most %d were in flight, want %d", n, limit)
	}
	c.close()
	k.empty(t, a)

	// Who says nothing holds a slot for as long as a handshake may take, and no
	// longer: then others come in. Who speaks after that is counted all the same, for
	// the server has its request. Who does not, until the kernel hands it over, is a
	// newcomer: ended if there is no slot.
	const few = 2
	silent, mute := silentCrowd(t, cli, to, few), silentCrowd(t, cli, to, few)
	others := newCrowd(t, cli, to, limit)
	others.wait(t, patience)
	if len(others.connected) != limit {
		t.Fatalf("%v; want %d", others, limit)
	}
	speak(others)
	k.await(t, limit)
	speak(silent)
	k.await(t, limit+few)
	if n := matches(t, a, srv); n != limit+few {
		t.Errorf("%d in flight, want %d", n, limit+few)
	}
	if !knock(t, cli, to) {
		t.Error("over the limit, one more is let in")
	}
	for _, fd := range mute.connected {
		awaitFor(t, 10*time.Second, "there is no slot for one that never speaks", func() (any, bool) {
			_, err := unix.Read(fd, make([]byte, 1))
			return err, err == unix.ECONNRESET
		})
	}
	for _, fd := range silent.connected {
		if _, err := unix.Read(fd, make([]byte, 1)); err != unix.EAGAIN {
			t.Errorf("one that spoke late: %v", err)
		}
	}
	if n := matches(t, a, srv); n != limit+few {
		t.Errorf("%d in flight, want %d", n, limit+few)
	}
	if n := k.asked(); n != limit+few {
		t.Errorf("the server has read the requests of %d, want %d", n, limit+few)
	}
	silent.close()
	mute.close()
	others.close()
	k.empty(t, a)
	late := silentCrowd(t, cli, to, few)
	speak(late)
	k.await(t, few)
	if n := matches(t, a, srv); n != few {
		t.Errorf("%d in flight, want %d", n, few)
	}
	late.close()
	k.empty(t, a)
	matches(t, a, srv)
	st := target(a)
	if st.AdmittedTotal-st.TrimmedTotal != 2*limit+2*few || st.FinishedTotal != st.AdmittedTotal || st.TrimmedTotal != few || st.Flood {
		t.Errorf("want %d admitted and finished, and %d ended: %+v", 2*limit+2*few, few, st)
	}
}

// asked is on how many of its connections there is something to read.
func (k *keeper) asked() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.conns {
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if m, _ := c.Read(make([]byte, 1)); m > 0 {
			n++
		}
	}
	return n
}

// Beside a flood who speaks late is ended, if there is no slot. The server reads its
// request all the same, and it is counted for as long as the server keeps it; also if
// the server accepts it only after the end.
func TestDeferAcceptBesideFlood(t *testing.T) {
	r := newFloodRig(t, "1")
	to := netip.AddrPortFrom(r.srv.Addr4, port)
	a := protect(t, r.srv, floodLimit)
	ln := listenRaw(t, r.srv, 512, setTCP(unix.TCP_DEFER_ACCEPT, 5))
	stop := r.flood(t, 2000)
	defer stop()
	await(t, "flood mode", func() (any, bool) { st := target(a); return st, st.Flood })
	c := newCrowd(t, r.cli, to, floodLimit+20)
	c.wait(t, patience)
	clients := len(c.connected)
	if clients <= floodLimit {
		t.Fatalf("%v: none is over the limit", c)
	}
	for _, fd := range c.connected {
		if _, err := unix.Write(fd, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	ended := func() (n int) {
		for _, fd := range c.connected {
			if _, err := unix.Read(fd, make([]byte, 1)); err == unix.ECONNRESET {
				n++
			}
		}
		return n
	}
	over := 0
	await(t, "what is over the limit is ended", func() (any, bool) {
		st := target(a)
		over += ended()
		// Handshakes of the flood may have slots for a moment: then more are over.
		return fmt.Sprint(over, st), over >= clients-floodLimit && uint64(over) == st.TrimmedTotal && st.InFlight == clients
	})
	k := keepOn(t, ln)
	await(t, "the server has all", func() (any, bool) { return k.held(), k.held() == clients })
	if n, st := k.asked(), target(a); n != clients || st.InFlight != n {
		t.Errorf("the server works on %d, %d are in flight, want %d", n, st.InFlight, clients)
	}
	c.close()
	k.empty(t, a)
}

// silentCrowd is a crowd of clients that say nothing, until no slot is held for
// them any more.
func silentCrowd(t *testing.T, from *lab.Host, to netip.AddrPort, n int) *crowd {
	t.Helper()
	c := newCrowd(t, from, to, n)
	c.wait(t, patience)
	if len(c.connected) != n {
		t.Fatalf("%v; want %d connected", c, n)
	}
	await(t, "no slot is held for those that say nothing", func() (any, bool) {
		n := inKernel(t)
		return n, n == 0
	})
	return c
}
