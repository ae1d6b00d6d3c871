package e2e

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
)

// pacedRule lets ten a second in, holdRule ten at a time.
const (
	pacedRule = `
window: 50ms
rules:
  - name: shop
    port: 8080
    limit: {algorithm: fixed, initial: 1000}
    pace: {rate: 10, max_wait: 20s}
`
	holdRule = `
window: 50ms
rules:
  - name: shop
    port: 8080
    limit: {algorithm: fixed, initial: 10}
    hold: {max_wait: 20s}
`
)

// Agents that end while they hold, in every way, as processes.
func TestHoldProcess(t *testing.T) {
	lab.ForTest(t, "any") // skips without root
	program := buildAgent(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, string)
	}{
		{"paced, killed", func(t *testing.T, program string) { testPacedEnd(t, program, syscall.SIGKILL) }},
		{"paced, hung", func(t *testing.T, program string) { testPacedEnd(t, program, syscall.SIGSTOP) }},
		{"paced, stopped", func(t *testing.T, program string) { testPacedEnd(t, program, syscall.SIGTERM) }},
		{"killed and started again", testHoldRestart},
		{"hung and gone on", testHoldHung},
		{"clean stop", testHoldCleanStop},
		{"clean-up", testHoldCleanup},
		{"successor", testHoldSuccessor},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, program) })
	}
}

// testPacedEnd ends an agent when half of the clients that wait are in: the
// others come in too, without it.
func testPacedEnd(t *testing.T, program string, end syscall.Signal) {
	const clients = 40
	w := wired(t, nil)
	srv, cli := w.A.Host, w.B.Host
	k := keep(t, srv, "tcp", ":8080")
	p := runAgent(t, program, srv, pacedRule)
	c := newCrowd(t, cli, netip.AddrPortFrom(w.A.Addr4, port), clients)
	c.wait(t, 1050*time.Millisecond)
	if n := len(c.connected); n < 10 || n > 12 {
		t.Fatalf("after a second: %v", c)
	}
	p.signal(t, end)
	ended := time.Now()
	c.wait(t, patience)
	t.Logf("the last came in %v after the agent had got %v", time.Since(ended), end)
	if len(c.connected) != clients {
		t.Errorf("%v; want all connected", c)
	}
	// A SYN is sent again each second at first.
	if took := time.Since(ended); took > lease+time.Second+3*slack {
		t.Errorf("that took %v, at a lease of %v", took, lease)
	}
	k.await(t, clients)
	if end == syscall.SIGTERM { // which leaves nothing that could count
		c.close()
		k.closeAll()
	} else {
		awaitFor(t, patience, "all in flight", func() (any, bool) {
			n, waiting := kernelUnits(t)
			return [2]int{n, waiting}, n == clients
		})
		c.close()
		k.closeAll()
		// A SYN sent again that arrives after its handshake has a place, and
		// nobody to give it up, until a while after its pace slot.
		awaitFor(t, 3*patience, "nobody in flight or waiting", func() (any, bool) {
			n, waiting := kernelUnits(t)
			return [2]int{n, waiting}, n == 0 && waiting == 0
		})
	}
}

// testHoldRestart kills an agent while many wait, and starts another.
func testHoldRestart(t *testing.T, program string) {
	const clients = 100
	w := wired(t, nil)
	srv, cli := w.A.Host, w.B.Host
	to := netip.AddrPortFrom(w.A.Addr4, port)
	k := keep(t, srv, "tcp", ":8080")
	p := runAgent(t, program, srv, holdRule)
	c := newCrowd(t, cli, to, clients)
	awaitUnits(t, 10, clients-10)
	p.signal(t, syscall.SIGKILL)
	_ = p.cmd.Wait()
	// The next is there before any SYN is sent again: all of them go on
	// waiting.
	second := runAgent(t, program, srv, holdRule)
	began := time.Now()
	awaitUnits(t, 10, clients-10)
	await(t, "all are held again", func() (any, bool) {
		n := queued(t, srv)
		return n, n >= clients-10
	})
	t.Logf("held again %v after the second agent", time.Since(began))
	awaitUnits(t, 10, clients-10)
	if n := connections(t, srv, port); n != 10 {
		t.Errorf("%d connections at a limit of 10", n)
	}
	for range clients/10 - 1 {
		k.await(t, 10)
		k.closeAll()
	}
	c.wait(t, patience)
	if len(c.connected) != clients {
		t.Errorf("%v; want all connected", c)
	}
	k.await(t, 10)
	await(t, "the second agent counts as the kernel does", func() (any, bool) {
		st := second.target(t)
		return st, st.InFlight == 10 && st.Waiting == 0 && st.AdmittedTotal == clients && st.FinishedTotal == clients-10 && st.BypassedTotal == 0
	})
	c.close()
	k.closeAll()
	awaitUnits(t, 0, 0)
}

// testHoldHung stops an agent while some wait until all gates are open, and has
// it go on.
func testHoldHung(t *testing.T, program string) {
	const clients = 50
	w := wired(t, nil)
	srv, cli := w.A.Host, w.B.Host
	to := netip.AddrPortFrom(w.A.Addr4, port)
	k := keep(t, srv, "tcp", ":8080")
	p := runAgent(t, program, srv, holdRule)
	c := newCrowd(t, cli, to, clients)
	awaitUnits(t, 10, clients-10)
	p.signal(t, syscall.SIGSTOP)
	c.wait(t, patience)
	if len(c.connected) != clients {
		t.Errorf("while the agent hangs: %v; want all connected", c)
	}
	k.await(t, clients)
	awaitUnits(t, clients, 0)
	dial(t, cli, to) // over the limit: the lease has run out
	k.await(t, clients+1)

	p.signal(t, syscall.SIGCONT)
	time.Sleep(slack)
	late := newCrowd(t, cli, to, 5)
	awaitUnits(t, clients+1, 5)
	k.close(clients + 1 - 9)
	late.wait(t, slack)
	if len(late.connected) != 1 {
		t.Errorf("with 9 in flight at a limit of 10: %v", late)
	}
	k.close(9)
	late.wait(t, patience)
	if len(late.connected) != 5 {
		t.Errorf("with room for all: %v", late)
	}
	await(t, "counts are right", func() (any, bool) {
		st := p.target(t)
		return st, st.InFlight == 5 && st.Waiting == 0 && st.AdmittedTotal == clients+1+5 && int(st.BypassedTotal) == clients-10
	})
	c.close()
	late.close()
	k.await(t, 5)
	k.closeAll()
	awaitUnits(t, 0, 0)
}
