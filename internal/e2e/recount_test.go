package e2e

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/status"
)

// spoil adds to what the programs count in flight and waiting, as nothing that
// runs does.
func spoil(t *testing.T, inFlight, waiting, connections int) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(stateDir(), "live", "maps", "states"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	// struct target_state: units, peak, pending, refused_in, listens, connections
	state := make([]byte, m.ValueSize())
	if err := m.Lookup(uint32(0), state); err != nil {
		t.Fatal(err)
	}
	units := binary.NativeEndian.Uint64(state)
	now := uint64(uint32(units>>32)+uint32(waiting))<<32 | uint64(uint32(units)+uint32(inFlight))
	binary.NativeEndian.PutUint64(state, now)
	binary.NativeEndian.PutUint32(state[28:], binary.NativeEndian.Uint32(state[28:])+uint32(connections))
	if err := m.Put(uint32(0), state); err != nil {
		t.Fatal(err)
	}
}

// recount has the agent compare its counts and returns what it corrected.
func recount(t *testing.T, a *agent.Agent) status.Recount {
	t.Helper()
	if err := a.Recount(); err != nil {
		t.Fatal(err)
	}
	r := target(a).Recount
	r.SecondsAgo = 0
	return r
}

// A count that is wrong is put right, by exactly what it is off, and one that is
// right is left alone: at rest, and while connections come and go.
func TestRecount(t *testing.T) {
	srv, cli, to := hosts(t)
	serveUntilEOF(t, srv)
	a := protect(t, srv, 10_000)
	for range 20 {
		dial(t, cli, to)
	}
	awaitInFlight(t, a, 20)
	if got := recount(t, a); got != (status.Recount{}) {
		t.Errorf("corrected, with nothing wrong: %+v", got)
	}
	for _, drift := range []struct{ inFlight, waiting int }{{5, 0}, {-7, 0}, {0, 3}, {-2, 1}} {
		spoil(t, drift.inFlight, drift.waiting, 0)
		want := status.Recount{InFlight: drift.inFlight, Waiting: drift.waiting}
		if got := recount(t, a); got != want {
			t.Errorf("corrected %+v, want %+v", got, want)
		}
		if n, w := kernelUnits(t); n != 20 || w != 0 {
			t.Errorf("%d in flight and %d waiting, want 20 and 0", n, w)
		}
	}

	c := comeAndGo(t, cli, to, 4, 100_000)
	begin := time.Now()
	for time.Since(begin) < time.Second {
		if got := recount(t, a); got != (status.Recount{}) {
			t.Errorf("corrected, with nothing wrong but much going on: %+v", got)
		}
	}
	// The count moves while it is spoilt: it may be off by a little more or less.
	spoil(t, 100, 0, 0)
	taken, calm := 0, 0
	await(t, "nothing is left to correct", func() (any, bool) {
		r := recount(t, a)
		taken += r.InFlight
		if calm++; r != (status.Recount{}) {
			calm = 0
		}
		return taken, calm == 20
	})
	_, rate := c.stop()
	t.Logf("%d taken away among %.0f connections a second", taken, rate)
	if taken < 80 || taken > 120 {
		t.Errorf("%d were taken away, want about 100", taken)
	}
	exact(t, srv) // no recount helps that
	awaitInFlight(t, a, 20)
}

// Whoever detaches the programs while connections come and go spoils every
// count; with the programs back a recount knows them again.
func TestRecountAfterBlindness(t *testing.T) {
	for _, unit := range []config.Unit{config.UnitConnection, config.UnitRequest} {
		t.Run(string(unit), func(t *testing.T) {
			srv, cli, to := hosts(t)
			k := keep(t, srv, "tcp", ":8080")
			a := startAgent(t, srv, port, func(r *config.Rule) {
				fixed(100)(r)
				r.Unit = unit
			})
			counted := func() int {
				if st := target(a); unit == config.UnitConnection {
					return st.InFlight
				} else {
					return st.Connections
				}
			}
			for range 30 {
				dial(t, cli, to)
			}
			k.await(t, 30)
			resets := []*net.TCPConn{dial(t, cli, to), dial(t, cli, to)}
			k.await(t, 32)
			for _, c := range resets { // the server holds these still: they count
				reset(t, c)
			}
			await(t, "all are counted", func() (any, bool) { return counted(), counted() == 32 })
			if got := recount(t, a); got != (status.Recount{}) {
				t.Errorf("corrected, with nothing wrong: %+v", got)
			}

			detach(t, "sockops")
			detach(t, "sock_release")
			k.close(12) // nobody sees that
			for range 5 {
				dial(t, cli, to) // nor that
			}
			k.await(t, 20+5)
			await(t, "the agent attaches again and counts anew", func() (any, bool) {
				return counted(), counted() == 25
			})
			k.closeAll()
			await(t, "none are left", func() (any, bool) { return counted(), counted() == 0 })
			if got := recount(t, a); got != (status.Recount{}) {
				t.Errorf("corrected, with nothing wrong: %+v", got)
			}
		})
	}
}

// What a server connects to from the port that it listens on is nothing that came
// in: neither who begins nor a recount counts it.
func TestRecountOfOutgoing(t *testing.T) {
	srv, cli, to := hosts(t)
	keep(t, cli, "tcp", ":9000")
	out := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		control := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		})
		return errors.Join(control, err)
	}}
	connectOut := func(from, to netip.Addr) {
		t.Helper()
		out.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, port))
		err := srv.Do(func() error {
			c, err := out.DialContext(t.Context(), "tcp", netip.AddrPortFrom(to, 9000).String())
			if err == nil {
				t.Cleanup(func() { c.Close() })
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	connectOut(srv.Addr4, cli.Addr4)
	connectOut(srv.Addr6, cli.Addr6)
	keep(t, srv, "tcp", ":8080")
	dial(t, cli, to)
	if n := connections(t, srv, port); n != 3 {
		t.Fatalf("%d connections, want 3", n)
	}
	a := protect(t, srv, 10)
	for range 2 {
		awaitInFlight(t, a, 1)
		if got := recount(t, a); got != (status.Recount{}) {
			t.Errorf("corrected, with nothing wrong: %+v", got)
		}
	}
}

// detach takes a program off its hook, as bpftool link detach does.
func detach(t *testing.T, hook string) {
	t.Helper()
	l, err := link.LoadPinnedLink(filepath.Join(stateDir(), "live", "links", hook), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Detach(); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

// neverDrifts has an agent compare its counts all the time until the test ends,
// and fails the test when something is wrong with them.
func neverDrifts(t *testing.T, a *agent.Agent) {
	t.Helper()
	done, ended := make(chan struct{}), make(chan struct{})
	n := 0
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
			if err := a.Recount(); err != nil {
				t.Error(err)
				return
			}
			n++
			r := target(a).Recount
			if r.SecondsAgo = 0; r != (status.Recount{}) {
				t.Errorf("recount %d corrected what was right: %+v", n, r)
			}
		}
	}()
	t.Cleanup(func() {
		close(done)
		<-ended
		t.Logf("%d recounts found nothing wrong", n)
	})
}
