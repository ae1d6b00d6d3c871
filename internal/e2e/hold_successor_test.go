package e2e

import (
	"context"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/config"
)

// What an agent that was killed while it held leaves to one that is told
// something else.

const (
	longHoldRule = `
rules:
  - name: shop
    port: 8080
    limit: {algorithm: fixed, initial: 2}
    hold: {max_wait: 1h, max_waiting: 10}
`
	noHoldRule = `
rules:
  - name: shop
    port: 8080
    limit: {algorithm: fixed, initial: 2}
`
	dropRule = `
rules:
  - name: shop
    port: 8080
    limit: {algorithm: fixed, initial: 2}
    reject: drop
`
)

// killWhileHolding leaves two connections and ten ghosts.
func killWhileHolding(t *testing.T, program string, srv, cli *lab.Host, to netip.AddrPort, k *keeper) {
	t.Helper()
	p := runAgent(t, program, srv, longHoldRule)
	dial(t, cli, to)
	dial(t, cli, to)
	k.await(t, 2)
	ghosts := newCrowd(t, cli, to, 10)
	awaitUnits(t, 2, 10)
	ghosts.close()
	p.signal(t, syscall.SIGKILL)
	_ = p.cmd.Wait()
}

func testHoldSuccessor(t *testing.T, program string) {
	for name, rule := range map[string]string{"the same": longHoldRule, "no hold": noHoldRule, "drop": dropRule} {
		t.Run(name, func(t *testing.T) {
			srv, cli, to := hosts(t)
			k := keep(t, srv, "tcp", ":8080")
			killWhileHolding(t, program, srv, cli, to, k)
			second := runAgent(t, program, srv, rule)
			ours := pinnedMaps(t)
			want := wholeHold
			if rule == noHoldRule {
				want = whole
			}
			if got := attachedPrograms(t, ours); !maps.Equal(got, want) {
				t.Errorf("attached: %v, want %v", got, want)
			}
			if rules := output(t, srv, "nft", "list", "ruleset"); strings.Contains(rules, "headgate") != (rule != noHoldRule) {
				t.Errorf("in the packet filter: %s", rules)
			}
			awaitUnits(t, 2, 0)
			// The ghosts take nobody's place.
			k.closeAll()
			awaitUnits(t, 0, 0)
			for range 20 {
				dial(t, cli, to)
				k.await(t, 1)
				k.closeAll()
				awaitUnits(t, 0, 0)
			}
			if st := second.target(t); rejectedInAll(st) != 0 || st.BypassedTotal != 0 || st.HeldTotal != 10 {
				t.Errorf("refused, bypassed or held: %+v", st)
			}
			if code := second.stop(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
			nothingHeldLeft(t, srv, ours)
		})
	}
}

// Who may wait by what the next agent is told is not refused while that begins,
// and nobody holds yet: where its maps are others, and where the rule, or that one
// may wait by it, is new.
func TestHoldBeginsWithSuccessor(t *testing.T) {
	for name, first := range map[string]*config.Config{
		"other maps":      configFor(&lab.Host{}, port, holding(1, time.Hour)),
		"hold is new":     configFor(&lab.Host{}, port, fixed(60_000)),
		"the rule is new": configFor(&lab.Host{}, port+1, fixed(60_000)),
	} {
		t.Run(name, func(t *testing.T) {
			srv, cli, to := hosts(t)
			serveUntilEOF(t, srv)
			first.Rules[0].Scope.Netns = srv.NetNS
			if err := start(t, first).Stop(); err != nil {
				t.Fatal(err)
			}
			if first.Rules[0].Waits() {
				reshape(t)
			}

			ctx, stop := context.WithCancel(t.Context())
			var clients sync.WaitGroup
			var connected, refused atomic.Int64
			clients.Go(func() {
				for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
					clients.Go(func() {
						c, err := cli.Dial(ctx, "tcp", to.String())
						switch {
						case isRefused(err):
							refused.Add(1)
						case err == nil:
							connected.Add(1)
							<-ctx.Done()
							c.Close()
						}
					})
				}
			})
			a := startHolding(t, srv, holding(1, time.Hour))
			await(t, "who comes now waits", func() (any, bool) { return target(a), target(a).Waiting > 0 })
			stop()
			clients.Wait()
			t.Logf("%d connected", connected.Load())
			if n := refused.Load(); n > 0 || connected.Load() < 10 {
				t.Errorf("%d connected, and %d were refused", connected.Load(), n)
			}
		})
	}
}

// Who waits is let in when the rule only observes from now on, and nobody is
// held that comes then.
func TestHeldUntilObserve(t *testing.T) {
	const clients = 30
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	a := startHolding(t, srv, holding(2, time.Minute))
	c := newCrowd(t, cli, to, clients)
	awaitUnits(t, 2, clients-2)
	a.SetMode(config.ModeObserve)
	c.wait(t, 2*slack)
	if len(c.connected) != clients {
		t.Errorf("%v; want all connected", c)
	}
	more := newCrowd(t, cli, to, clients)
	more.wait(t, slack)
	if len(more.connected) != clients {
		t.Errorf("%v; want all connected", more)
	}
	k.await(t, 2*clients)
	await(t, "all are counted", func() (any, bool) {
		st := target(a)
		return st, st.AdmittedTotal == 2*clients && st.HeldTotal == clients-2 && st.WouldRejectTotal >= clients && rejectedInAll(st) == 0
	})
	c.close()
	more.close()
	k.empty(t, a)
	empty(t, a)
}
