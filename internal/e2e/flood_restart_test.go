package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/config"
)

// shortly is how long a server that restarts has no listener.
const shortly = 150 * time.Millisecond

// restarted is a server that answers each client once, after 20 ms, and can end as
// a process does.
type restarted struct {
	ln net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func startRestarted(t *testing.T, h *lab.Host) *restarted {
	t.Helper()
	ln, err := h.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	s := &restarted{ln: ln, conns: make(map[net.Conn]bool)}
	s.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[c] = true
			s.mu.Unlock()
			s.wg.Go(func() { s.answer(c) })
		}
	})
	t.Cleanup(s.end)
	return s
}

func (s *restarted) answer(c net.Conn) {
	b := make([]byte, 1)
	if _, err := c.Read(b); err == nil {
		time.Sleep(20 * time.Millisecond)
		_, _ = c.Write(b) // or it has ended
	}
	c.Close()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// end closes the listener and all connections.
func (s *restarted) end() {
	s.ln.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// insistent are clients that come to a server again and again until stop, also when
// they are turned away. It returns the visits.
func insistent(t *testing.T, from *lab.Host, to netip.AddrPort, n int) (stop func() []call) {
	t.Helper()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		all  []call
		done = make(chan struct{})
	)
	for range n {
		wg.Go(func() {
			for {
				v := call{at: time.Now()}
				v.err = askOnce(t.Context(), from, to)
				v.took = time.Since(v.at)
				mu.Lock()
				all = append(all, v)
				mu.Unlock()
				select {
				case <-done:
					return
				case <-time.After(2 * time.Millisecond):
				}
			}
		})
	}
	stop = sync.OnceValue(func() []call {
		close(done)
		wg.Wait()
		return all
	})
	t.Cleanup(func() { stop() })
	return stop
}

// call is one visit.
type call struct {
	at   time.Time
	took time.Duration
	err  error
}

// While a server restarts nobody answers those who come, and they leave as many
// reservations as a flood. Once it listens they are in: at once, all, and nobody is a
// stranger, also where the kernel's queue is kept from strangers, nor waits longer.
func TestRestartIsNoFlood(t *testing.T) {
	for _, c := range []struct {
		name, syncookies string
		clients          int
		set              func(*config.Rule)
	}{
		{"refused", "0", 20, fixed(50)},
		{"waiting", "1", 30, holding(10, 5*time.Second)},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv, cli, to := hosts(t)
			if err := srv.Sysctl("net.ipv4.tcp_syncookies", c.syncookies); err != nil {
				t.Fatal(err)
			}
			a := startHolding(t, srv, c.set)
			s := startRestarted(t, srv)
			stop := insistent(t, cli, to, c.clients)
			time.Sleep(300 * time.Millisecond)
			s.end()
			time.Sleep(shortly)
			startRestarted(t, srv)
			up := time.Now()
			time.Sleep(time.Second)
			st := target(a)
			visits := stop()
			late, turned := 0, 0
			for _, v := range visits {
				switch {
				case v.err != nil && v.at.After(up):
					turned++
				case v.at.Add(v.took).After(up) && v.took > 500*time.Millisecond+slack:
					late++
				}
			}
			if turned > 0 || late > 0 || st.Flood {
				t.Errorf("%d visits; since it listens again %d turned away and %d late: %+v", len(visits), turned, late, st)
			}
		})
	}
}

// A server that restarts in a flood is defended again soon.
func TestRestartInFlood(t *testing.T) {
	r := newFloodRig(t, "1")
	to := netip.AddrPortFrom(r.srv.Addr4, port)
	a := protect(t, r.srv, floodLimit)
	s := startRestarted(t, r.srv)
	stop := r.flood(t, 2000)
	defer stop()
	await(t, "flood mode", func() (any, bool) { st := target(a); return st, st.Flood })
	s.end()
	time.Sleep(shortly)
	startRestarted(t, r.srv)
	time.Sleep(100 * time.Millisecond) // some windows
	await(t, "flood mode again", func() (any, bool) { st := target(a); return st, st.Flood })
	peak := watchPeak(t)
	if with := come(t, r.cli, to, floodClients, floodVisits/4); with.failed > 1 {
		t.Errorf("%v", with)
	}
	if n := peak(); n > floodLimit {
		t.Errorf("%d were in flight, limit %d", n, floodLimit)
	}
}
