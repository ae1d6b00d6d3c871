package e2e

import (
	"maps"
	"net/netip"
	"strings"
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
