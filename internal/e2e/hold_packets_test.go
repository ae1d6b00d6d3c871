package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/config"
)

// What single packets do to those that are held or dropped.

// packets counts what passes on a wire.
type packets struct {
	mu      sync.Mutex
	syns    int // of the client
	answers int // of the server, of any kind
	resets  int // of these, RSTs
	lose    func(fromServer bool, s lab.Segment) bool
}

func (p *packets) see(f *lab.Frame) {
	s, ok := f.Segment()
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fromServer := f.From.Name == "srv"
	switch {
	case fromServer:
		p.answers++
		if s.Has(lab.RST, lab.RST) {
			p.resets++
		}
	case s.Has(lab.SYN, lab.SYN|lab.ACK):
		p.syns++
	}
	if p.lose != nil && p.lose(fromServer, s) {
		f.Drop()
	}
}

func (p *packets) reset(lose func(fromServer bool, s lab.Segment) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.syns, p.answers, p.resets, p.lose = 0, 0, 0, lose
}

func (p *packets) counts() (syns, answers, resets int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.syns, p.answers, p.resets
}

// Who is dropped hears nothing, is counted for each SYN, and comes in by the
// next one once there is room.
func TestDroppedInSilence(t *testing.T) {
	var seen packets
	w := wired(t, seen.see)
	srv, cli := w.A.Host, w.B.Host
	for _, addr := range []netip.Addr{w.A.Addr4, w.A.Addr6} {
		t.Run(addr.String(), func(t *testing.T) {
			to := netip.AddrPortFrom(addr, port)
			k := keep(t, srv, "tcp", ":8080")
			a := startHolding(t, srv, func(r *config.Rule) {
				fixed(1)(r)
				r.Reject = config.RejectDrop
			})
			dial(t, cli, to)
			k.await(t, 1)
			time.Sleep(slack / 2) // for the last ACK
			seen.reset(nil)
			c := newCrowd(t, cli, to, 1)
			await(t, "the second SYN is there", func() (any, bool) {
				syns, _, _ := seen.counts()
				return syns, syns == 2
			})
			await(t, "each SYN is counted", func() (any, bool) {
				st := target(a)
				return st, st.RejectedTotal.Limit == 2
			})
			if _, answers, _ := seen.counts(); answers != 0 {
				t.Errorf("%d packets came back", answers)
			}
			if n := queued(t, srv); n != 0 {
				t.Errorf("%d packets went through user space", n)
			}
			// Field report: a SYN that is sent again is judged again.
			k.close(1)
			begin := time.Now()
			c.wait(t, patience)
			if len(c.connected) != 1 {
				t.Fatalf("after there is room: %v", c)
			}
			t.Logf("came in %v after there was room", time.Since(begin))
			k.await(t, 1)
			awaitInFlight(t, a, 1)
			st := target(a)
			if st.AdmittedTotal != 2 || st.RejectedTotal.Limit != 2 {
				t.Errorf("want 2 admitted and 2 rejected: %+v", st)
			}
			c.close()
			k.empty(t, a)
			empty(t, a)
		})
	}
}

// A handshake whose answers are lost for three seconds is one connection, also
// where it is decided on the device.
func TestHeldLostSynAcks(t *testing.T) {
	const outage = 3 * time.Second
	var seen packets
	w := wired(t, seen.see)
	srv, cli := w.A.Host, w.B.Host
	k := keep(t, srv, "tcp", ":8080")
	a := startHolding(t, srv, holding(2, time.Minute))
	begin := time.Now()
	seen.reset(func(fromServer bool, _ lab.Segment) bool { return fromServer && time.Since(begin) < outage })
	c := dial(t, cli, netip.AddrPortFrom(w.A.Addr4, port))
	syns, _, _ := seen.counts()
	if took := time.Since(begin); syns < 3 || took < outage {
		t.Errorf("%d SYNs in %v: the handshake was not disturbed", syns, took)
	}
	k.await(t, 1)
	awaitInFlight(t, a, 1)
	if st := target(a); st.AdmittedTotal != 1 || st.HeldTotal != 0 || rejectedInAll(st) != 0 {
		t.Errorf("want 1 admitted: %+v", st)
	}
	staysInFlight(t, a, 1, reservationTTL+200*time.Millisecond)
	c.Close()
	k.empty(t, a)
	empty(t, a)
}

// A handshake that is established while its SYN, sent again, waits, waits no
// longer.
func TestEstablishedWhileHeld(t *testing.T) {
	var seen packets
	w := wired(t, seen.see)
	srv, cli := w.A.Host, w.B.Host
	to := netip.AddrPortFrom(w.A.Addr4, port)
	k := keep(t, srv, "tcp", ":8080")
	a := startHolding(t, srv, holding(1, time.Minute))
	// The first SYN is answered, and the answer lost until its slot has gone
	// to another.
	begin := time.Now()
	seen.reset(func(fromServer bool, s lab.Segment) bool {
		return fromServer && s.Has(lab.SYN|lab.ACK, lab.SYN|lab.ACK) && s.Dst.Port() != 40000 && time.Since(begin) < 2500*time.Millisecond
	})
	late := newCrowd(t, cli, to, 1)
	await(t, "the reservation has expired", func() (any, bool) {
		n, _ := kernelUnits(t)
		return n, n == 0 && time.Since(begin) > reservationTTL
	})
	first := dialFrom(t, cli, 40000, to)
	k.await(t, 1)
	late.wait(t, patience)
	if len(late.connected) != 1 {
		t.Fatal(late)
	}
	syns, answers, _ := seen.counts()
	t.Logf("%d SYNs, %d answers", syns, answers)
	k.await(t, 2)
	// Nobody waits, and who has overtaken is counted.
	awaitUnits(t, 2, 0)
	awaitInFlight(t, a, 2)
	staysInFlight(t, a, 2, 200*time.Millisecond)
	first.Close()
	late.close()
	k.empty(t, a)
	empty(t, a)
}

// dialFrom connects from a port.
func dialFrom(t *testing.T, from *lab.Host, local uint16, to netip.AddrPort) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{Port: int(local)}, Timeout: patience}
	var c net.Conn
	err := from.Do(func() (err error) {
		c, err = d.DialContext(t.Context(), "tcp", to.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// SYNs that are sent again while they are held are the same client.
func TestHeldRetransmissions(t *testing.T) {
	const clients = 5
	var seen packets
	w := wired(t, seen.see)
	srv, cli := w.A.Host, w.B.Host
	to := netip.AddrPortFrom(w.A.Addr4, port)
	k := keep(t, srv, "tcp", ":8080")
	a := startHolding(t, srv, holding(1, time.Minute))
	dial(t, cli, to)
	k.await(t, 1)
	seen.reset(nil)
	c := newCrowd(t, cli, to, clients)
	await(t, "each has sent its SYN three times", func() (any, bool) {
		syns, _, _ := seen.counts()
		return syns, syns == 3*clients
	})
	awaitUnits(t, 1, clients)
	if st := target(a); st.HeldTotal != clients || st.Waiting != clients || rejectedInAll(st) != 0 {
		t.Errorf("want %d held and waiting: %+v", clients, st)
	}
	if n := queued(t, srv); n != 3*clients {
		t.Errorf("%d packets were queued, want %d", n, 3*clients)
	}
	begin := time.Now()
	for range clients {
		k.close(1)
		k.await(t, 1)
	}
	c.wait(t, slack)
	if len(c.connected) != clients {
		t.Errorf("%v after there was room: %v", time.Since(begin), c)
	}
	await(t, "all are counted once", func() (any, bool) {
		st := target(a)
		return st, st.InFlight == 1 && st.AdmittedTotal == clients+1 && st.FinishedTotal == clients
	})
	c.close()
	k.empty(t, a)
	empty(t, a)
}

// Clients that give up while they are held say nothing: they keep their places
// for max_wait at most, and not for long when they do not send their SYNs
// again, and a slot until their hosts say that they are gone.
func TestHeldGivesUp(t *testing.T) {
	t.Run("silence", func(t *testing.T) {
		const patient = 5
		srv, cli, to := hosts(t)
		k := keep(t, srv, "tcp", ":8080")
		a := startHolding(t, srv, holding(1, time.Minute))
		dial(t, cli, to)
		k.await(t, 1)
		c := newCrowd(t, cli, to, 10)
		alive := newCrowd(t, cli, to, patient)
		local := newCrowd(t, srv, netip.AddrPortFrom(netip.IPv6Loopback(), port), patient)
		awaitUnits(t, 1, 10+2*patient)
		c.close()
		begin := time.Now()
		awaitUnits(t, 1, 2*patient)
		t.Logf("they kept their places for %v", time.Since(begin))
		alive.wait(t, 4*time.Second-time.Since(begin))
		awaitUnits(t, 1, 2*patient)
		for range 2 * patient {
			k.close(1)
			k.await(t, 1)
		}
		alive.wait(t, slack)
		local.wait(t, slack)
		if len(alive.connected) != patient || len(local.connected) != patient {
			t.Errorf("%v, %v; want all connected", alive, local)
		}
		alive.close()
		local.close()
		k.empty(t, a)
		empty(t, a)
	})
	t.Run("no slot comes free", func(t *testing.T) {
		const maxWait = 300 * time.Millisecond
		srv, cli, to := hosts(t)
		k := keep(t, srv, "tcp", ":8080")
		a := startHolding(t, srv, holding(1, maxWait))
		dial(t, cli, to)
		k.await(t, 1)
		c := newCrowd(t, cli, to, 10)
		awaitUnits(t, 1, 10)
		c.close()
		begin := time.Now()
		awaitUnits(t, 1, 0)
		if took := time.Since(begin); took > maxWait+slack {
			t.Errorf("they waited for another %v", took)
		}
		k.empty(t, a)
		empty(t, a)
		if n := connections(t, srv, port); n != 0 {
			t.Errorf("the kernel has %d connections when none is left", n)
		}
	})
	t.Run("a slot comes free", func(t *testing.T) {
		const ghosts = 10
		srv, cli, to := hosts(t)
		k := keep(t, srv, "tcp", ":8080")
		a := startHolding(t, srv, holding(2, time.Minute))
		dial(t, cli, to)
		dial(t, cli, to)
		k.await(t, 2)
		c := newCrowd(t, cli, to, ghosts)
		awaitUnits(t, 2, ghosts)
		c.close()
		alive := newCrowd(t, cli, to, 1)
		awaitUnits(t, 2, ghosts+1)
		begin := time.Now()
		k.closeAll()
		alive.wait(t, ghosts*reservationTTL)
		took := time.Since(begin)
		t.Logf("behind %d that had given up: %v", ghosts, took)
		if len(alive.connected) != 1 || took > slack {
			t.Errorf("after %v: %v", took, alive)
		}
		k.await(t, 1)
		alive.close()
		k.empty(t, a)
		empty(t, a)
	})
}

// A SYN of a client that was held, come late and after all that was sent later,
// is no other client.
func TestLateSYNOfHeld(t *testing.T) {
	const late = 500 * time.Millisecond
	var double atomic.Bool
	w := wired(t, func(f *lab.Frame) {
		if s, ok := f.Segment(); ok && double.Load() && f.From.Name == "cli" && s.Has(lab.SYN, lab.SYN|lab.ACK) {
			f.Duplicate(late)
		}
	})
	srv, cli := w.A.Host, w.B.Host
	to := netip.AddrPortFrom(w.A.Addr4, port)
	k := keep(t, srv, "tcp", ":8080")
	a := startHolding(t, srv, holding(1, time.Minute))
	dial(t, cli, to)
	k.await(t, 1)
	double.Store(true)
	c := newCrowd(t, cli, to, 1)
	awaitUnits(t, 1, 1)
	k.close(1)
	c.wait(t, slack)
	if len(c.connected) != 1 {
		t.Fatal(c)
	}
	for end := time.Now().Add(late + 2*slack); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if n, waiting := kernelUnits(t); n != 1 || waiting != 0 {
			t.Fatalf("%d in flight, %d waiting, want 1 and 0", n, waiting)
		}
	}
	if st := target(a); st.HeldTotal != 1 || st.AdmittedTotal != 2 {
		t.Errorf("want 1 held, 2 admitted: %+v", st)
	}
	k.await(t, 1)
	c.close()
	k.empty(t, a)
	empty(t, a)
}

// The same of one that was never held: neither with room to spare nor at the
// limit does it take a slot or a place.
func TestLateSYN(t *testing.T) {
	const late = 500 * time.Millisecond
	w := wired(t, func(f *lab.Frame) {
		if s, ok := f.Segment(); ok && f.From.Name == "cli" && s.Has(lab.SYN, lab.SYN|lab.ACK) {
			f.Duplicate(late)
		}
	})
	srv, cli := w.A.Host, w.B.Host
	for _, addr := range []netip.Addr{w.A.Addr4, w.A.Addr6} {
		for _, limit := range []int{1, 10} {
			t.Run(fmt.Sprintf("%s/%d", addr, limit), func(t *testing.T) {
				k := keep(t, srv, "tcp", ":8080")
				a := startHolding(t, srv, holding(limit, time.Minute))
				c := dial(t, cli, netip.AddrPortFrom(addr, port))
				k.await(t, 1)
				for end := time.Now().Add(late + slack); time.Now().Before(end); time.Sleep(time.Millisecond) {
					if n, waiting := kernelUnits(t); n != 1 || waiting != 0 {
						t.Fatalf("%d in flight, %d waiting, want 1 and 0", n, waiting)
					}
				}
				if st := target(a); st.HeldTotal != 0 || st.AdmittedTotal != 1 {
					t.Errorf("want none held, 1 admitted: %+v", st)
				}
				c.Close()
				k.empty(t, a)
				empty(t, a)
			})
		}
	}
}
