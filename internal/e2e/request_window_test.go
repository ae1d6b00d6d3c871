package e2e

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"headgate/internal/lab"
)

// strays is a pair of connections over a wire, of which the first has asked once
// and has its answer. What is sent with the payload unread gets lost behind the
// programs: the IP checksum is wrong.
type strays struct {
	*pair
	last atomic.Pointer[lab.Segment] // of the clients
}

const unread = "unread"

func newStrays(t *testing.T) *strays {
	s := &strays{}
	w := wired(t, func(f *lab.Frame) {
		if seg, ok := f.Segment(); ok && seg.Dst.Port() == port {
			if string(seg.Payload) == unread {
				f.Data[14+10] ^= 0xff
				return
			}
			s.last.Store(&seg)
		}
	})
	s.pair = &pair{T: t, srv: w.A.Host, cli: w.B.Host, to: netip.AddrPortFrom(w.A.Addr4, port)}
	s.server = keep(t, s.srv, "tcp", ":8080")
	s.agent = startHolding(t, s.srv, requests(1))
	s.first = dial(t, s.cli, s.to)
	s.server.await(t, 1)
	s.say(s.first, "zero") // the window is known
	s.hears(s.server.conns[0], "zero")
	awaitUnits(t, 1, 0)
	s.say(s.server.conns[0], "answer")
	s.hears(s.first, "answer")
	awaitUnits(t, 0, 0)
	time.Sleep(100 * time.Millisecond)
	return s
}

// send sends a segment that begins so far behind where the last one of a client
// began, and gives it time to arrive.
func (s *strays) send(ahead uint32, payload string) {
	s.Helper()
	last := s.last.Load()
	stray := *last
	stray.Seq += ahead
	stray.Flags = lab.ACK
	stray.Payload = []byte(payload)
	if err := s.cli.SendSegment(stray); err != nil {
		s.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	s.last.Store(last)
}

// both has the first client ask and the second wait.
func (s *strays) both() {
	s.Helper()
	s.say(s.first, "one")
	awaitUnits(s.T, 1, 0)
	s.second = dial(s.T, s.cli, s.to)
	s.server.await(s.T, 2)
	s.say(s.second, "two")
	awaitUnits(s.T, 1, 1)
}

// A segment that TCP does not take, or takes only for later, must not make what
// its client asks then look like something seen before.
func TestRequestsBehindStraySegments(t *testing.T) {
	for name, ahead := range map[string]uint32{"beyond the window": 1 << 30, "behind a gap": 1000} {
		t.Run(name, func(t *testing.T) {
			s := newStrays(t)
			s.send(ahead, "stray")
			awaitUnits(t, 0, 0)
			s.both()
			s.answer()
			s.finish()
		})
	}
}

// A client that waits can have no more packets held than its window has room for.
func TestStraySegmentsAreNotHeld(t *testing.T) {
	s := newStrays(t)
	s.both()
	// Without those that TCP sends again, since it has no answer.
	held := func() int { return queued(t, s.srv) - int(resent(t, s.cli)) }
	before := held()
	for _, ahead := range []uint32{1 << 30, 1<<31 - 5, 1 << 31, 1<<31 + 5, 3 << 30, 1<<32 - 5} {
		s.send(ahead, "stray")
	}
	if n := held() - before; n != 0 {
		t.Errorf("%d of 6 are held", n)
	}
	s.send(100, "for later")
	if n := held() - before; n != 1 {
		t.Errorf("%d held of one in the window", n)
	}
	s.answer()
	s.finish()
}

// What a request sends goes through the queue for a moment after it was let in,
// and not for as long as it goes on, whatever the agent lacks.
func TestPacketsOfARequestQueueForAMoment(t *testing.T) {
	s := newStrays(t)
	s.both()
	s.send(3, unread)
	began := time.Now()
	s.answer()
	s.hears(s.server.conns[1], "two")
	before := queued(t, s.srv)
	s.say(s.second, "a")
	s.hears(s.server.conns[1], "a")
	if n := queued(t, s.srv) - before; n != 1 && time.Since(began) < 100*time.Millisecond {
		t.Errorf("%d packets queue behind one that is missing, want 1: that tests nothing", n)
	}
	time.Sleep(150 * time.Millisecond)
	before = queued(t, s.srv)
	for range 10 {
		s.say(s.second, "b")
		s.hears(s.server.conns[1], "b")
	}
	if n := queued(t, s.srv) - before; n != 0 {
		t.Errorf("%d of 10 packets queue still", n)
	}
	awaitUnits(t, 1, 0)
	s.say(s.server.conns[1], "answer two")
	s.hears(s.second, "answer two")
	empty(t, s.agent)
}
