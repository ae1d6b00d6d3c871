package e2e

import (
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/controller"
	"headgate/pkg/status"
)

// port is the protected port of most tests.
const port = 8080

// patience is how long a test waits for what must come about.
var patience = lab.Allow(5 * time.Second)

// stateDir is where the agents of these tests keep their state.
func stateDir() string { return filepath.Join(bpffs, "state") }

// configFor is a configuration with one rule, for a port of a host.
func configFor(h *lab.Host, port uint16, set func(*config.Rule)) *config.Config {
	cfg := config.Default()
	cfg.State = stateDir()
	cfg.Lease = lab.Allow(cfg.Lease)
	r := config.DefaultRule()
	r.Name = "test"
	r.Ports = []uint16{port}
	r.Scope = config.Scope{Netns: h.NetNS}
	r.Mode = config.ModeEnforce
	set(&r)
	cfg.Rules = []config.Rule{r}
	return cfg
}

// startAgent starts an agent with one rule for a port of a host.
func startAgent(t *testing.T, h *lab.Host, port uint16, set func(*config.Rule)) *agent.Agent {
	t.Helper()
	return start(t, configFor(h, port, set))
}

// protect starts an agent with a fixed limit for the port of these tests. Its
// windows are short, so that its counts are soon what the kernel's are.
func protect(t *testing.T, h *lab.Host, limit int) *agent.Agent {
	t.Helper()
	cfg := configFor(h, port, fixed(limit))
	cfg.Window = 20 * time.Millisecond
	return start(t, cfg)
}

func start(t *testing.T, cfg *config.Config) *agent.Agent {
	t.Helper()
	a, err := agent.Start(cfg, "test", slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatalf("start the agent: %v", err)
	}
	t.Cleanup(func() {
		if err := a.Remove(); err != nil {
			t.Errorf("remove the agent: %v", err)
		}
	})
	return a
}

func fixed(n int) func(*config.Rule) {
	return func(r *config.Rule) {
		r.Limit = config.Limit{Algorithm: "fixed", Params: controller.Params{Initial: &n}}
	}
}

// target is what the agent reports of its only target.
func target(a *agent.Agent) status.Target { return a.Status().Targets[0] }

// await waits until look says that it is so, and fails the test with what
// look has seen last when that takes longer than patience.
func await(t *testing.T, what string, look func() (seen any, ok bool)) {
	t.Helper()
	awaitFor(t, patience, what, look)
}

func awaitFor(t *testing.T, patience time.Duration, what string, look func() (seen any, ok bool)) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		seen, ok := look()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v; last seen: %+v", what, patience, seen)
		}
	}
}

// awaitInFlight waits until the agent reports n connections in flight, none of
// them a reservation.
func awaitInFlight(t *testing.T, a *agent.Agent, n int) {
	t.Helper()
	await(t, fmt.Sprintf("%d in flight", n), func() (any, bool) {
		st := target(a)
		return st, st.InFlight == n && st.Pending == 0
	})
}

// staysInFlight checks that the agent goes on to report n connections in
// flight for a time.
func staysInFlight(t *testing.T, a *agent.Agent, n int, during time.Duration) {
	t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if st := target(a); st.InFlight != n {
			t.Fatalf("%d in flight, want %d all the time: %+v", st.InFlight, n, st)
		}
	}
}

// From linux/tcp_states.h.
const (
	tcpEstablished = 1
	tcpTimeWait    = 6
	tcpCloseWait   = 8
)

// sockets counts the kernel's own TCP sockets with a local port on a host that
// are in one of the states.
func sockets(t *testing.T, h *lab.Host, port uint16, states ...int) int {
	t.Helper()
	remote, err := h.Sockets(port, states...)
	if err != nil {
		t.Fatal(err)
	}
	return len(remote)
}

// connections counts the kernel's own established connections to a port.
func connections(t *testing.T, h *lab.Host, port uint16) int {
	t.Helper()
	return sockets(t, h, port, tcpEstablished, tcpCloseWait)
}

// watchPeak watches the kernel's count of the only target, more often than the
// agent does, until stop, which returns the most that it was.
func watchPeak(t *testing.T) (stop func() int) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(stateDir(), "live", "maps", "states"), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	peaks := make(chan int, 1)
	go func() {
		defer m.Close()
		var most uint32
		for {
			// struct target_state: units, then peak, the counts in their low halves.
			state := make([]byte, m.ValueSize())
			if err := m.Lookup(uint32(0), state); err != nil {
				t.Error(err)
			}
			most = max(most, binary.NativeEndian.Uint32(state), binary.NativeEndian.Uint32(state[8:]))
			select {
			case <-done:
				peaks <- int(most)
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	stop = sync.OnceValue(func() int {
		close(done)
		return <-peaks
	})
	t.Cleanup(func() { stop() })
	return stop
}

// keeper is a server that accepts every connection and does nothing with it.
type keeper struct {
	ln net.Listener

	mu    sync.Mutex
	conns []net.Conn
	times []time.Time // when each was accepted
}

// keep starts a keeper on a host. It ends with the test.
func keep(t *testing.T, h *lab.Host, network, address string) *keeper {
	t.Helper()
	ln, err := h.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return keepOn(t, ln)
}

// keepOn starts a keeper on a listener, which it closes.
func keepOn(t *testing.T, ln net.Listener) *keeper {
	t.Helper()
	k := &keeper{ln: ln}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			k.mu.Lock()
			k.conns = append(k.conns, c)
			k.times = append(k.times, time.Now())
			k.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-ended
		k.closeAll()
	})
	return k
}

func (k *keeper) held() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.conns)
}

// await waits until the keeper has accepted so many connections.
func (k *keeper) await(t *testing.T, n int) {
	t.Helper()
	await(t, fmt.Sprintf("%d accepted", n), func() (any, bool) { return k.held(), k.held() == n })
}

func (k *keeper) closeAll() { k.close(k.held()) }

// empty closes all connections, those too that come out of the accept queue
// meanwhile, until the agent reports none in flight.
func (k *keeper) empty(t *testing.T, a *agent.Agent) {
	t.Helper()
	await(t, "nothing in flight", func() (any, bool) {
		k.closeAll()
		st := target(a)
		return st, st.InFlight == 0
	})
}

// close closes so many of the connections.
func (k *keeper) close(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.conns[:n] {
		c.Close()
	}
	k.conns = k.conns[n:]
}

// serveUntilEOF is a server that closes what its client has closed. It ends with
// the test.
func serveUntilEOF(t *testing.T, h *lab.Host) {
	t.Helper()
	ln, err := h.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				_, _ = io.Copy(io.Discard, c)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		conns.Wait()
	})
}

// dial connects from a host and fails the test when it cannot.
func dial(t *testing.T, from *lab.Host, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	c, err := from.Dial(t.Context(), "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// reset closes a connection by RST.
func reset(t *testing.T, c *net.TCPConn) {
	t.Helper()
	if err := c.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// wired makes a lab with two hosts that are joined by a wire.
func wired(t *testing.T, hook func(*lab.Frame)) *lab.Wire {
	t.Helper()
	return wire(t, lab.ForTest(t, "mid", "srv", "cli"), hook)
}

// wire joins srv and cli of a lab by a wire, until the test ends.
func wire(t *testing.T, l *lab.Lab, hook func(*lab.Frame)) *lab.Wire {
	t.Helper()
	w, err := l.NewWire(l.Host("srv"), l.Host("cli"), hook)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// discard is a log that nobody reads.
func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
