package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/status"
)

// openAndClosed is a port that lets everybody in, and one that lets nobody. A third,
// where nobody comes, takes programs on devices.
const openAndClosed = `
rules:
  - name: open
    port: 8080
    limit: {algorithm: fixed, initial: 10000}
  - name: closed
    port: 8081
    limit: {algorithm: fixed, initial: 0}
    force: true
  - name: held
    port: 8082
    limit: {algorithm: fixed, initial: 1}
    hold: {max_wait: 1s}
`

// comers are clients that connect and end, by FIN and by RST, at a rate.
type comers struct {
	t      *testing.T
	begun  time.Time
	made   atomic.Int64
	let    bool // some may be refused
	out    atomic.Int64
	flood  atomic.Int64 // until when one may be ended, since begun
	still  sync.RWMutex // held by each client for as long as it is there
	rested atomic.Int64 // how long nobody came, ns
	done   chan struct{}
	group  sync.WaitGroup
	ending sync.Once
}

// comeAndGo has workers make so many connections a second together, as far as
// the machine can, until stop. One that is refused fails the test.
func comeAndGo(t *testing.T, cli *lab.Host, to netip.AddrPort, workers, rate int) *comers {
	t.Helper()
	return comeAndGoIf(t, cli, to, workers, rate, false)
}

// comeAndGoIf is comeAndGo where it may be right that one is refused.
func comeAndGoIf(t *testing.T, cli *lab.Host, to netip.AddrPort, workers, rate int, refused bool) *comers {
	t.Helper()
	c := &comers{t: t, begun: time.Now(), done: make(chan struct{}), let: refused}
	for w := range workers {
		c.group.Go(func() {
			each := time.NewTicker(time.Second * time.Duration(workers) / time.Duration(rate))
			defer each.Stop()
			for i := w; ; i++ {
				select {
				case <-c.done:
					return
				case <-each.C:
				}
				if err := c.one(cli, to, i%3 == 0); err != nil {
					t.Errorf("%v after %d connections: %v", time.Since(c.begun), c.made.Load(), err)
					return
				}
			}
		})
	}
	t.Cleanup(func() { c.stop() })
	return c
}

func (c *comers) one(cli *lab.Host, to netip.AddrPort, reset bool) error {
	c.still.RLock()
	defer c.still.RUnlock()
	conn, err := cli.Dial(context.Background(), "tcp", to.String())
	ended := errors.Is(err, syscall.ECONNRESET) && time.Since(c.begun) < time.Duration(c.flood.Load())
	if c.let && (isRefused(err) || ended) {
		c.out.Add(1)
		return nil
	}
	if err != nil {
		return err
	}
	if reset {
		_ = conn.(*net.TCPConn).SetLinger(0)
	}
	c.made.Add(1)
	return conn.Close()
}

// mayEnd says for how long there may be flood mode, which may end who has connected.
func (c *comers) mayEnd(d time.Duration) { c.flood.Store(int64(time.Since(c.begun) + d)) }

// atRest calls look while nobody comes.
func (c *comers) atRest(look func()) {
	c.still.Lock()
	defer c.still.Unlock()
	begin := time.Now()
	look()
	c.rested.Add(int64(time.Since(begin)))
}

// stop returns how many connected, and how many a second while they might.
func (c *comers) stop() (n int, perSecond float64) {
	c.ending.Do(func() {
		close(c.done)
		c.group.Wait()
	})
	n = int(c.made.Load())
	return n, float64(n) / (time.Since(c.begun) - time.Duration(c.rested.Load())).Seconds()
}

// gatewatch knocks at a gate that lets nobody in, all the time.
type gatewatch struct {
	knocks atomic.Int64
	done   chan struct{}
	ended  chan struct{}

	mu    sync.Mutex
	since time.Time // when it was seen to be closed last
	open  bool
	gap   time.Duration // the longest for which it was not
}

func watchGate(t *testing.T, cli *lab.Host, to netip.AddrPort) *gatewatch {
	t.Helper()
	w := &gatewatch{done: make(chan struct{}), ended: make(chan struct{}), since: time.Now()}
	go func() {
		defer close(w.ended)
		for {
			select {
			case <-w.done:
				return
			case <-time.After(2 * time.Millisecond):
			}
			c, err := cli.Dial(context.Background(), "tcp", to.String()) // the test's own ends before its cleanups
			if err != nil && !isRefused(err) {
				t.Error(err)
				return
			}
			w.knocks.Add(1)
			w.note(err == nil)
			if err == nil {
				c.Close()
			}
		}
	}()
	t.Cleanup(func() {
		close(w.done)
		<-w.ended
	})
	return w
}

func (w *gatewatch) note(in bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if in || w.open {
		w.gap = max(w.gap, now.Sub(w.since))
	}
	if w.open = in; !in {
		w.since = now
	}
}

// gapSince returns for how long the gate was open at most since the last call.
func (w *gatewatch) gapSince() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	gap := w.gap
	w.gap = 0
	return gap
}

// targets is what headgate status shows, by port.
func (p *agentProcess) targets(t *testing.T) map[uint16]status.Target {
	t.Helper()
	text, err := p.ask("status", "-o", "json")
	if err != nil {
		t.Fatalf("status: %v: %s", err, text)
	}
	var st status.Status
	if err := json.Unmarshal([]byte(text), &st); err != nil {
		t.Fatalf("status: %v in %s", err, text)
	}
	all := make(map[uint16]status.Target)
	for _, target := range st.Targets {
		all[target.Port] = target
	}
	return all
}

// counts checks, while nobody comes, that the agent counts as many on the open
// port as the kernel has sockets, which is at least those that stay.
func (p *agentProcess) counts(t *testing.T, c *comers, srv *lab.Host, stay int) {
	t.Helper()
	c.atRest(func() {
		await(t, "the counts are those of the kernel", func() (any, bool) {
			st, n := p.targets(t)[port], connections(t, srv, port)
			return []any{n, st}, n == stay && st.InFlight == stay && st.Pending == 0 && st.Recount.InFlight == 0
		})
	})
}
