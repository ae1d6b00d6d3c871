package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/config"
)

// Responses of 20 ms and then 40 chunks 5 ms apart. By their first byte they
// are over after 20 of 220 ms, and more than the limit are inside; by idle
// output they are over when they are over.
func TestStreamsEndWhenTheyAreIdle(t *testing.T) {
	const limit, clients = 5, 30
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	var served crowdInside
	stream := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer served.enter()()
		time.Sleep(20 * time.Millisecond)
		for range 40 {
			fmt.Fprintln(w, "a chunk of a stream")
			w.(http.Flusher).Flush()
			time.Sleep(5 * time.Millisecond)
		}
	})
	serveHandler(t, srv, stream)
	addr := netip.AddrPortFrom(srv.Addr4, 8080)
	a := startAgent(t, srv, 8080, func(r *config.Rule) {
		requests(limit)(r)
		r.End = config.End{Idle: 50 * time.Millisecond}
	})
	var wg sync.WaitGroup
	end := time.Now().Add(3 * time.Second)
	for range clients {
		c := dial(t, cli, addr)
		wg.Go(func() {
			defer c.Close()
			for time.Now().Before(end) {
				if !fetched(t, c) {
					return
				}
			}
		})
	}
	wg.Wait()
	// A stream takes 220 ms, and its slot is free 50 ms later or with the next.
	t.Logf("%d streams, at most %d at once", served.total.Load(), served.peak.Load())
	if served.peak.Load() > limit {
		t.Errorf("%d streams at once, want up to %d", served.peak.Load(), limit)
	}
	if want := int64(3 * limit * 1000 / 300); served.total.Load() < want {
		t.Errorf("%d streams, want at least %d", served.total.Load(), want)
	}
	empty(t, a)
}

// Five requests are sent at once on each connection. The kernel sees one; ended
// by idle output it lasts until all five are answered, and the limit holds.
func TestPipeliningKeepsToTheLimit(t *testing.T) {
	const limit, clients, batch = 5, 20, 5
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	var served crowdInside
	serveHandler(t, srv, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		defer served.enter()()
		time.Sleep(20 * time.Millisecond)
	}))
	addr := netip.AddrPortFrom(srv.Addr4, 8080)
	a := startAgent(t, srv, 8080, func(r *config.Rule) {
		requests(limit)(r)
		r.End = config.End{Idle: 60 * time.Millisecond}
	})
	var wg sync.WaitGroup
	end := time.Now().Add(2 * time.Second)
	for range clients {
		c := dial(t, cli, addr)
		wg.Go(func() {
			defer c.Close()
			in := bufio.NewReader(c)
			for time.Now().Before(end) {
				if _, err := io.WriteString(c, strings.Repeat("GET / HTTP/1.1\r\nHost: test\r\n\r\n", batch)); err != nil {
					t.Error(err)
					return
				}
				for range batch {
					if !answered(t, c, in) {
						return
					}
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d requests in batches of %d, at most %d at once", served.total.Load(), batch, served.peak.Load())
	if served.peak.Load() > limit {
		t.Errorf("%d at once, want up to %d", served.peak.Load(), limit)
	}
	if served.total.Load() < clients*batch {
		t.Errorf("only %d served", served.total.Load())
	}
	empty(t, a)
}

// crowdInside counts the requests that a handler works on.
type crowdInside struct{ now, peak, total atomic.Int64 }

// enter counts one until what it returns is called.
func (c *crowdInside) enter() (leave func()) {
	n := c.now.Add(1)
	for p := c.peak.Load(); n > p && !c.peak.CompareAndSwap(p, n); p = c.peak.Load() {
	}
	return func() {
		c.now.Add(-1)
		c.total.Add(1)
	}
}

// serveHandler runs an HTTP server in this process on port 8080 of a host.
func serveHandler(t *testing.T, h *lab.Host, handler http.Handler) {
	t.Helper()
	ln, err := h.Listen("tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handler}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(ln) // ends with Close
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
}

// fetched makes a request and reads the whole response.
func fetched(t *testing.T, c net.Conn) bool {
	t.Helper()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: test\r\n\r\n"); err != nil {
		t.Error(err)
		return false
	}
	return answered(t, c, bufio.NewReader(c))
}

func answered(t *testing.T, c net.Conn, in *bufio.Reader) bool {
	t.Helper()
	err := c.SetDeadline(time.Now().Add(30 * time.Second))
	var resp *http.Response
	if err == nil {
		resp, err = http.ReadResponse(in, nil)
	}
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

// The agent looks for a request to see whether its response is over. When the rule
// has come to count connections by then, and that one is gone, the kernel looks for
// its listener in its place: nothing is taken for that, and nobody refused.
func TestNoSlotForWhatIsGone(t *testing.T) {
	const clients = 20
	srv, cli, to := hosts(t)
	serveHandler(t, srv, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }))
	a := start(t, configFor(srv, port, func(r *config.Rule) {
		requests(2 * clients)(r)
		r.End = config.End{Idle: 600 * time.Millisecond}
	}))
	for range clients {
		c := dial(t, cli, to)
		if !fetched(t, c) {
			t.Fatal("no answer")
		}
		c.Close()
	}
	await(t, "each was counted, and is gone", func() (any, bool) {
		st := target(a)
		return st, st.AdmittedTotal == clients && st.Connections == 0
	})
	reload(t, a, configFor(srv, port, holding(clients/2, time.Second)))
	for end := time.Now().Add(800 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if n, _ := kernelUnits(t); n != 0 {
			t.Fatalf("%d in flight, and nobody is there: %+v", n, target(a))
		}
	}
	if st := target(a); st.RejectedTotal.Limit != 0 {
		t.Errorf("nobody came, and was refused: %+v", st)
	}
}
