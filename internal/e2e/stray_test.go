package e2e

import (
	"errors"
	"log/slog"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
)

// Any packet that belongs to no connection gets as far as the lookup of a
// listener. A stray ACK or RST, and a SYN to a port that nobody listens on, must
// not keep clients out for as long as a handshake may take.
func TestStraysHoldNoSlotForLong(t *testing.T) {
	const limit = 2
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	addr := netip.AddrPortFrom(srv.Addr4, 8080)
	a := protect(t, srv, limit)

	connects := func(what string) {
		t.Helper()
		begin := time.Now()
		await(t, "a client gets in after "+what, func() (any, bool) {
			c, err := cli.Dial(t.Context(), "tcp", addr.String())
			if err != nil {
				return err, false
			}
			return nil, c.Close() == nil
		})
		// 200 ms, found by a sweep each 100 ms, and a window.
		if took := time.Since(begin); took > 700*time.Millisecond {
			t.Errorf("a client got in %v after %s", took, what)
		}
		awaitInFlight(t, a, 0)
	}

	for range 10 * limit {
		if _, err := cli.Dial(t.Context(), "tcp", addr.String()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("connect to a port that nobody listens on: %v", err)
		}
	}
	closeAtOnce(t, srv)
	connects("its listener appeared")

	for i, flags := range []lab.TCPFlags{lab.ACK, lab.RST, lab.ACK, lab.RST} {
		err := cli.SendSegment(lab.Segment{
			Src: netip.AddrPortFrom(cli.Addr4, uint16(2000+i)), Dst: addr, Flags: flags, Seq: 1, Ack: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	connects("strays")
	// The kernel drops strays at the listener, and counts that there.
	time.Sleep(1100 * time.Millisecond)
	if n := target(a).AcceptQueue.OverflowsTotal; n != 0 {
		t.Errorf("%d strays are taken for connections that found the accept queue full", n)
	}
}

// A schedule that slow clients filled and left, under a slow rate, must not
// hold up anybody once they are gone and the rate is another.
func TestPaceForgetsWhoGaveUp(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	closeAtOnce(t, srv)
	addr := netip.AddrPortFrom(srv.Addr4, 8080)
	paced := func(rate float64, wait time.Duration) func(*config.Rule) {
		return func(r *config.Rule) {
			fixed(1000)(r)
			r.Pace = config.Pace{Rate: config.Rate{PerSecond: rate}, MaxWait: wait, Headroom: 1}
			r.Hold = config.Hold{MaxWaiting: 1000, Order: config.OrderFIFO}
		}
	}
	a, err := agent.Start(configFor(srv, 8080, paced(1, time.Minute)), "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	crowd := newCrowd(t, cli, addr, 25)
	await(t, "24 wait", func() (any, bool) { st := target(a); return st.Waiting, st.Waiting == 24 })
	crowd.close()
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	b := start(t, configFor(srv, 8080, paced(1000, 0)))
	begin := time.Now()
	await(t, "a client gets in", func() (any, bool) {
		c, err := cli.Dial(t.Context(), "tcp", addr.String())
		if err != nil {
			return err, false
		}
		return nil, c.Close() == nil
	})
	if took := time.Since(begin); took > time.Second {
		t.Errorf("a client got in after %v, at 1000 a second", took)
	}
	awaitInFlight(t, b, 0)
}

// closeAtOnce runs a server on port 8080 of a host that closes what it accepts.
func closeAtOnce(t *testing.T, h *lab.Host) {
	t.Helper()
	ln, err := h.Listen("tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
}
