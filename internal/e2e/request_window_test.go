package e2e

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"headgate/internal/lab"
)

// A segment that TCP does not take, or takes only for later, must not make what
// its client asks then look like something seen before.
func TestRequestsBehindStraySegments(t *testing.T) {
	for name, ahead := range map[string]uint32{"beyond the window": 1 << 30, "behind a gap": 1000} {
		t.Run(name, func(t *testing.T) {
			var last atomic.Pointer[lab.Segment] // of the client
			w := wired(t, func(f *lab.Frame) {
				if s, ok := f.Segment(); ok && s.Dst.Port() == port {
					last.Store(&s)
				}
			})
			k := keep(t, w.A.Host, "tcp", ":8080")
			a := startHolding(t, w.A.Host, requests(1))
			to := netip.AddrPortFrom(w.A.Addr4, port)
			p := &pair{T: t, srv: w.A.Host, cli: w.B.Host, to: to, server: k, agent: a}
			p.first = dial(t, w.B.Host, to)
			k.await(t, 1)
			p.say(p.first, "zero") // the window is known
			p.hears(k.conns[0], "zero")
			awaitUnits(t, 1, 0)
			p.say(k.conns[0], "answer")
			p.hears(p.first, "answer")
			awaitUnits(t, 0, 0)
			time.Sleep(100 * time.Millisecond)

			stray := *last.Load()
			stray.Seq += ahead
			stray.Flags = lab.ACK
			stray.Payload = []byte("stray")
			if err := w.B.Host.SendSegment(stray); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
			awaitUnits(t, 0, 0)
			p.say(p.first, "one")
			awaitUnits(t, 1, 0)
			p.second = dial(t, w.B.Host, to)
			k.await(t, 2)
			p.say(p.second, "two")
			awaitUnits(t, 1, 1)
			p.answer()
			p.finish()
		})
	}
}
