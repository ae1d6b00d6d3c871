package e2e

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/pkg/agent"
	"headgate/pkg/config"
)

// Clients of all kinds, a fifth of which give up before, while or after they
// are held, leave nothing behind, and there are never more than the limit. The
// same where each has a source and a class: these end with nothing, too.
func TestHeldChurn(t *testing.T) {
	inParties(t, testHeldChurn)
}

func testHeldChurn(t *testing.T, set func(*config.Rule)) *agent.Agent {
	t.Helper()
	const limit, workers, during = 8, 48, 5 * time.Second / 2
	srv, cli, to4 := hosts(t)
	to6 := netip.AddrPortFrom(srv.Addr6, port)
	a := startHolding(t, srv, both(holding(limit, time.Second), set))
	neverDrifts(t, a)
	startChurnServer(t, srv)
	peak := watchPeak(t)
	var group sync.WaitGroup
	var done, gaveUp, refused atomic.Int64
	end := time.Now().Add(during)
	for w := range workers {
		group.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			to := []netip.AddrPort{to4, to6}[w%2]
			for time.Now().Before(end) {
				impatient := r.IntN(5) == 0
				d := net.Dialer{Timeout: 10 * time.Second}
				if impatient {
					d.Timeout = time.Duration(r.IntN(int(20 * time.Millisecond)))
				}
				var c net.Conn
				err := cli.Do(func() (err error) {
					c, err = d.DialContext(t.Context(), "tcp", to.String())
					return err
				})
				switch {
				case err != nil && impatient && (errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)):
					gaveUp.Add(1)
					continue
				case err != nil && isRefused(err):
					refused.Add(1)
					continue
				case err != nil:
					t.Error(err)
					return
				}
				kind := byte(clientCloses + r.IntN(serverHolds-clientCloses))
				if impatient {
					gaveUp.Add(1)
					kind = []byte{clientAborts, clientIdles}[r.IntN(2)]
				}
				if err := live(c.(*net.TCPConn), kind); err != nil {
					t.Errorf("kind %c: %v", kind, err)
					return
				}
				done.Add(1)
			}
		})
	}
	group.Wait()
	st := target(a)
	t.Logf("%d done, %d gave up, %d refused; %d held, %d admitted", done.Load(), gaveUp.Load(), refused.Load(), st.HeldTotal, st.AdmittedTotal)
	if n := peak(); n != limit {
		t.Errorf("at most %d were in flight, want %d", n, limit)
	}
	if gaveUp.Load() < done.Load()/10 || st.HeldTotal < 1000 || st.BypassedTotal != 0 {
		t.Errorf("this was no test: %+v", st)
	}
	empty(t, a)
	await(t, "all that began has ended", func() (any, bool) {
		st := target(a)
		return st, st.AdmittedTotal == st.FinishedTotal
	})
	if n := connections(t, srv, port); n != 0 {
		t.Errorf("the kernel has %d connections when all are closed", n)
	}
	if n := heldPackets(t, srv); n != 0 {
		t.Errorf("%d packets are still queued", n)
	}
	return a
}
