package e2e

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"headgate/pkg/events"
)

const addChain = "add table inet other; add chain inet other in { type filter hook prerouting priority -300; }"

// When others change the packet filter, the kernel drops what is queued, and
// says so to nobody. Its clients send it again and come in all the same.
func TestForeignChainWhileHeld(t *testing.T) {
	const clients = 60
	w := wired(t, nil)
	srv, cli := w.A.Host, w.B.Host
	k := keep(t, srv, "tcp", ":8080")
	a := startHolding(t, srv, holding(5, time.Minute))
	c := newCrowd(t, cli, netip.AddrPortFrom(w.A.Addr4, port), clients)
	awaitUnits(t, 5, clients-5)
	output(t, srv, "nft", addChain)
	time.Sleep(slack)
	output(t, srv, "nft", "delete table inet other")
	awaitUnits(t, 5, clients-5)
	begin := time.Now()
	for n := 5; n < clients; n += 5 {
		k.await(t, 5)
		k.closeAll()
	}
	c.wait(t, patience)
	t.Logf("all are in after %v", time.Since(begin))
	if len(c.connected) != clients {
		t.Errorf("%v; want all connected", c)
	}
	k.await(t, 5)
	await(t, "all are counted once", func() (any, bool) {
		st := target(a)
		return st, st.InFlight == 5 && st.AdmittedTotal == clients && st.HeldTotal == clients-5 && st.BypassedTotal == 0 && rejectedInAll(st) == 0
	})
	c.close()
	k.empty(t, a)
	empty(t, a)
}

// The same under a pace, with changes all the time.
func TestForeignChainWhilePaced(t *testing.T) {
	const clients = 40
	w := wired(t, nil)
	srv, cli := w.A.Host, w.B.Host
	k := keep(t, srv, "tcp", ":8080")
	a := startHolding(t, srv, paced(20, time.Minute))
	c := newCrowd(t, cli, netip.AddrPortFrom(w.A.Addr4, port), clients)
	for range 3 {
		time.Sleep(slack)
		output(t, srv, "nft", addChain)
		time.Sleep(slack)
		output(t, srv, "nft", "delete table inet other")
	}
	c.wait(t, 2*patience)
	t.Logf("the last came in after %v", quantile(c.admitted, 1))
	if len(c.connected) != clients {
		t.Fatalf("%v; want all connected", c)
	}
	k.await(t, clients)
	if st := target(a); st.BypassedTotal != 0 || rejectedInAll(st) != 0 {
		t.Errorf("bypassed or rejected: %+v", st)
	}
	c.close()
	k.empty(t, a)
	empty(t, a)
}

// Who takes headgate's rule out of the packet filter sees it come back, and
// until then nobody is kept out.
func TestRuleRemoved(t *testing.T) {
	for _, command := range []string{"delete table inet headgate", "flush ruleset", "flush chain inet headgate hold"} {
		t.Run(command, func(t *testing.T) {
			srv, cli, to := hosts(t)
			k := keep(t, srv, "tcp", ":8080")
			a := startHolding(t, srv, holding(5, time.Minute))
			output(t, srv, "nft", command)
			c := newCrowd(t, cli, to, 10)
			c.wait(t, slack)
			if len(c.connected) != 10 {
				t.Errorf("without a rule: %v; want all connected", c)
			}
			await(t, "the rule is back", func() (any, bool) {
				rules := output(t, srv, "nft", "list", "ruleset")
				return rules, strings.Contains(rules, "waits in queue")
			})
			await(t, "it is told", func() (any, bool) {
				told, _ := refusals(t, a, events.HookTrouble)
				return told, len(told) == 1 && told[0].Hook == "netfilter" && strings.Contains(told[0].Message, "somebody removed headgate's rule")
			})
			c.close()
			k.closeAll()
			awaitUnits(t, 0, 0)
			c = newCrowd(t, cli, to, 10)
			awaitUnits(t, 5, 5)
			k.await(t, 5)
			k.closeAll()
			c.wait(t, patience)
			if len(c.connected) != 10 {
				t.Errorf("with the rule: %v; want all connected", c)
			}
			k.await(t, 5)
			if st := target(a); st.BypassedTotal != 5 {
				t.Errorf("want 5 bypassed: %+v", st)
			}
			c.close()
			k.empty(t, a)
			empty(t, a)
		})
	}
}

// Who waits when the agent takes itself out comes in at once, and who arrives at that
// moment: nobody has to send anything again.
func TestNothingIsLostByTakingOut(t *testing.T) {
	const times, clients, resent = 5, 400, time.Second
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	for range times {
		a := startHolding(t, srv, holding(1, time.Minute))
		first := newCrowd(t, cli, to, 10)
		awaitUnits(t, 1, 9)
		removed := make(chan error, 1)
		go func() { removed <- a.Remove() }()
		c := newCrowd(t, cli, to, clients)
		if err := <-removed; err != nil {
			t.Fatal(err)
		}
		for _, c := range []*crowd{first, c} {
			c.wait(t, patience)
			if len(c.admitted) == 0 || c.refused+len(c.connecting)+len(c.failed) > 0 {
				t.Fatalf("%v, want all connected", c)
			}
			if last := quantile(c.admitted, 1); last > resent {
				t.Errorf("of %v the last came in after %v", c, last)
			}
			c.close()
		}
		k.await(t, 10+clients) // or the next agent counts who is accepted later
		k.closeAll()
	}
}
