package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
)

// What other limiters were reported to get wrong about when the limit applies
// and what a refused client gets.

// Connections that are long closed must not use up the limit, however fast
// they come and go.
func TestFieldStaleEntries(t *testing.T) {
	const limit, atOnce, all = 64, 4, 10_000
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	a := protect(t, srv, limit)
	startChurnServer(t, srv)
	peak := watchPeak(t)
	var group sync.WaitGroup
	for i := range atOnce {
		group.Go(func() {
			to := netip.AddrPortFrom([]netip.Addr{srv.Addr4, srv.Addr6}[i%2], port)
			for range all / atOnce {
				c, err := cli.Dial(t.Context(), "tcp", to.String())
				if err != nil {
					t.Error(err)
					return
				}
				// Closed on both sides before the next one: it ends with the server's FIN.
				_ = c.SetDeadline(time.Now().Add(patience))
				_, err = c.Write([]byte{serverCloses})
				if err == nil {
					_, err = io.ReadAll(c)
				}
				if err := errors.Join(err, c.Close()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	if n := peak(); n < 1 || n > atOnce {
		t.Errorf("at most %d were in flight, want 1 to %d", n, atOnce)
	}
	await(t, "all are counted", func() (any, bool) {
		st := target(a)
		return st, st.AdmittedTotal == all && st.FinishedTotal == all && st.InFlight == 0
	})
	if n := target(a).RejectedTotal.Limit; n != 0 {
		t.Errorf("%d rejected under the limit", n)
	}
}

// Loopback is no way around the limit.
func TestFieldLoopback(t *testing.T) {
	h := lab.ForTest(t, "srv").Host("srv")
	for _, addr := range []string{"127.0.0.1", "::1"} {
		t.Run(addr, func(t *testing.T) {
			a := protect(t, h, 2)
			to := netip.AddrPortFrom(netip.MustParseAddr(addr), port)
			k := keep(t, h, "tcp", to.String())
			dial(t, h, to)
			dial(t, h, to)
			if c, err := h.Dial(t.Context(), "tcp", to.String()); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a third connection: %v, %v; want it refused", c, err)
			}
			k.await(t, 2)
			await(t, "2 in flight, 1 rejected", func() (any, bool) {
				st := target(a)
				return st, st.InFlight == 2 && st.RejectedTotal.Limit == 1
			})
			if n := connections(t, h, port); n != 2 {
				t.Errorf("the kernel has %d connections, the agent 2", n)
			}
		})
	}
}

// A refused client is told so by a RST that it believes, at once, also when the
// link pads its frames.
func TestFieldRefusal(t *testing.T) {
	for _, padding := range []int{0, 6, 46} {
		t.Run(fmt.Sprintf("padding %d", padding), func(t *testing.T) { testRefusal(t, padding) })
	}
}

func testRefusal(t *testing.T, padding int) {
	var mu sync.Mutex
	var answers []lab.Segment
	isn := make(map[netip.AddrPort]uint32)
	w := wired(t, func(f *lab.Frame) {
		if s, ok := f.Segment(); ok {
			mu.Lock()
			if f.From.Name == "cli" && s.Has(lab.SYN, lab.SYN|lab.ACK) {
				isn[s.Src] = s.Seq
			} else if s.Has(lab.RST, lab.RST) && f.From.Name == "srv" {
				answers = append(answers, s)
			}
			mu.Unlock()
		}
		for range padding {
			f.Data = append(f.Data, 0x5a)
		}
	})
	srv, cli := w.A.Host, w.B.Host
	a := protect(t, srv, 1)
	k := keep(t, srv, "tcp", ":8080")
	held := dial(t, cli, netip.AddrPortFrom(w.A.Addr4, port))
	k.await(t, 1)

	const each = 10
	var slowest time.Duration
	for i := range 2 * each {
		to := netip.AddrPortFrom([]netip.Addr{w.A.Addr4, w.A.Addr6}[i%2], port)
		begin := time.Now()
		_, err := cli.Dial(t.Context(), "tcp", to.String())
		slowest = max(slowest, time.Since(begin))
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("connect to %v at the limit: %v, want it refused", to, err)
		}
	}
	if slowest > 100*time.Millisecond {
		t.Errorf("a refusal took %v", slowest)
	}
	t.Logf("slowest refusal %v", slowest)
	await(t, "each is rejected once", func() (any, bool) {
		st := target(a)
		return st, st.InFlight == 1 && st.RejectedTotal.Limit == 2*each
	})
	mu.Lock()
	if len(answers) != 2*each || len(isn) != 2*each+1 {
		t.Errorf("%d RSTs for %d connects, %d SYNs in all", len(answers), 2*each, len(isn))
	}
	for _, rst := range answers {
		if want := isn[rst.Dst] + 1; rst.Ack != want || !rst.Has(lab.RST|lab.ACK, lab.RST|lab.ACK|lab.SYN|lab.FIN) {
			t.Errorf("answer %+v, want a RST that acknowledges %d", rst, want)
		}
	}
	mu.Unlock()

	// What is let in works over the same path.
	held.Close()
	k.empty(t, a)
	awaitInFlight(t, a, 0)
}
