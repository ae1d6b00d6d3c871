package e2e

import (
	"net"
	"syscall"
	"testing"
	"time"

	"headgate/pkg/loader"
)

// Strangers that are over the limit and gone before the agent comes to end them, for
// their server has restarted: they take no slot for that, and are not refused.
func TestFloodTrimsWhoIsGone(t *testing.T) {
	const strangers = 3 * floodLimit
	r, to, _ := newFarFloodRig(t, 100*time.Millisecond)
	t.Cleanup(func() { _, _ = loader.Cleanup(stateDir()) })
	listen := func() net.Listener {
		ln, err := r.srv.Listen("tcp", ":8080")
		if err != nil {
			t.Fatal(err)
		}
		return ln
	}
	ln := listen()
	a, started := startChild(t, r.srv, childSpec{State: stateDir(), Limit: floodLimit})
	if started.Error != "" {
		t.Fatal(started.Error)
	}
	defer a.kill(t)
	stop := r.flood(t, 2000)
	await(t, "flood mode", func() (any, bool) { st := a.target(t); return st, st.Flood })
	stop()
	await(t, "nothing in flight", func() (any, bool) { st := a.target(t); return st, st.InFlight == 0 })
	before := a.target(t)

	if err := a.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c := newCrowd(t, r.cli, to, strangers)
	c.wait(t, patience)
	await(t, "all are connected", func() (any, bool) { n := connections(t, r.srv, port); return n, n == strangers })
	ln.Close() // nobody was accepted: all are reset
	ln = listen()
	defer ln.Close()
	awaitUnits(t, 0, 0)
	if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	most := 0
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		n, _ := kernelUnits(t)
		most = max(most, n)
	}
	st := a.target(t)
	if st.TrimmedTotal != strangers-floodLimit {
		t.Fatalf("%d are over the limit, of %d: %+v", st.TrimmedTotal, strangers, st)
	}
	if most > 0 || st.RejectedTotal != before.RejectedTotal {
		t.Errorf("nobody is there, and %d are in flight; refused %+v, before %+v", most, st.RejectedTotal, before.RejectedTotal)
	}
}
