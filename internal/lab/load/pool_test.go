package load

import (
	"bufio"
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// echo is a server that answers each line after a time, and resets every
// connection at its nth line.
type echo struct {
	net.Listener
	service time.Duration
	resets  int // 0: never

	open, most, all atomic.Int64
}

func (e *echo) serve(t *testing.T) {
	var clients sync.WaitGroup
	t.Cleanup(clients.Wait)
	t.Cleanup(func() { e.Close() })
	clients.Go(func() {
		for {
			c, err := e.Accept()
			if err != nil {
				return
			}
			e.all.Add(1)
			e.most.Store(max(e.most.Load(), e.open.Add(1)))
			clients.Go(func() {
				defer e.open.Add(-1)
				defer c.Close()
				lines := bufio.NewScanner(c)
				for n := 1; lines.Scan(); n++ {
					if n == e.resets {
						_ = c.(*net.TCPConn).SetLinger(0)
						return
					}
					time.Sleep(e.service)
					if _, err := c.Write([]byte("ok\n")); err != nil {
						return
					}
				}
			})
		}
	})
}

func startEcho(t *testing.T, service time.Duration, resets int) (*echo, netip.AddrPort) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{Listener: l, service: service, resets: resets}
	e.serve(t)
	return e, l.Addr().(*net.TCPAddr).AddrPort()
}

func TestPool(t *testing.T) {
	line := []Turn{{Send: []byte("x\n"), Begin: "ok", End: "\n"}}
	const ms = time.Millisecond
	run := func(t *testing.T, p Pool, to netip.AddrPort, n int, every time.Duration) (c Counts, all []Result, use PoolUse) {
		t.Helper()
		p.Open = func(ctx context.Context) (*Session, error) { return Dial(ctx, netip.Addr{}, to) }
		i := -1
		arrivals := func() (time.Duration, bool) {
			i++
			return time.Duration(i) * every, i < n
		}
		use, err := p.Run(t.Context(), arrivals, line, func(r Result) { c.add(r.Outcome); all = append(all, r) })
		if err != nil {
			t.Fatal(err)
		}
		if int(c.Arrived) != n {
			t.Errorf("%d of %d requests were reported", c.Arrived, n)
		}
		return c, all, use
	}

	t.Run("kept", func(t *testing.T) {
		e, to := startEcho(t, 0, 0)
		if c, _, _ := run(t, Pool{Max: 5, Acquire: time.Second, Timeout: 2 * time.Second}, to, 50, 2*ms); c.Answered != 50 {
			t.Errorf("%+v", c)
		}
		if n := e.all.Load(); n < 1 || n > 5 {
			t.Errorf("%d connections for all, want 1 to 5", n)
		}
	})
	t.Run("one for one", func(t *testing.T) {
		_, to := startEcho(t, 50*ms, 0)
		if _, _, use := run(t, Pool{Max: 5, Acquire: time.Second, Timeout: 2 * time.Second}, to, 1, 0); use.Opened != 1 {
			t.Errorf("%d connections for one request", use.Opened)
		}
	})
	t.Run("no more than so many", func(t *testing.T) {
		e, to := startEcho(t, 300*ms, 0)
		c, all, _ := run(t, Pool{Max: 3, Acquire: 100 * ms, Timeout: 10 * time.Second}, to, 10, 0)
		if c.Answered != 3 || c.TimedOut != 7 {
			t.Errorf("%+v, want 3 answered and 7 that gave up", c)
		}
		for _, r := range all {
			if r.Outcome == TimedOut && r.Latency < 100*ms {
				t.Errorf("gave up after %v", r.Latency)
			}
		}
		if e.most.Load() != 3 {
			t.Errorf("%d connections at once, want 3", e.most.Load())
		}
	})
	t.Run("what is lost is replaced", func(t *testing.T) {
		e, to := startEcho(t, 0, 2)
		c, _, use := run(t, Pool{Max: 2, Acquire: time.Second, Timeout: 2 * time.Second}, to, 40, 2*ms)
		if c.Answered < 15 || c.Reset < 15 || c.Answered+c.Reset != 40 {
			t.Errorf("%+v, want half answered, half reset", c)
		}
		if use.Opened < 15 {
			t.Errorf("%d connections were opened in all", use.Opened)
		}
		if n := e.most.Load(); n > 3 { // the server notices late that one is gone
			t.Errorf("%d connections at once", n)
		}
	})
	t.Run("nobody listens", func(t *testing.T) {
		e, to := startEcho(t, 0, 0)
		e.Close()
		if c, _, _ := run(t, Pool{Max: 2, Pause: 20 * ms, Acquire: 100 * ms, Timeout: time.Second}, to, 5, ms); c.TimedOut != 5 {
			t.Errorf("%+v, want 5 that gave up", c)
		}
	})
}
