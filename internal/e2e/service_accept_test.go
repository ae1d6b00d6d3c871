package e2e

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/internal/lab/load"
	"headgate/pkg/config"
	"headgate/pkg/controller"
	"headgate/pkg/loader"
)

// How long connections wait for the application is what the server and its
// clients see of it, whoever speaks first, and nothing of the client's own
// leisure or of the server's work is in it.
func TestAcceptWait(t *testing.T) {
	const clients = 12
	tests := []struct {
		name      string
		pause     time.Duration // of the server before each accept
		greets    bool          // the server speaks first
		leisure   time.Duration // of the client between handshake and request
		request   string        // its first piece
		pieces    int           // of the request, each 15 ms after the one before
		multipath bool          // TCP of the client
		work      time.Duration // of the server after it has read
		longest   time.Duration // of a wait, where it is not what the two saw
		addresses func(srv *lab.Host) netip.Addr
	}{
		{name: "one after the other", pause: 20 * time.Millisecond, addresses: four},
		{name: "IPv6", pause: 20 * time.Millisecond, addresses: six},
		{name: "server speaks first", pause: 20 * time.Millisecond, greets: true, addresses: four},
		{name: "in pieces", pause: 20 * time.Millisecond, pieces: 20, addresses: four},
		{name: "Multipath TCP", pause: 20 * time.Millisecond, multipath: true, addresses: four},
		{name: "TLS at leisure", leisure: 400 * time.Millisecond, request: "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", longest: 100 * time.Millisecond, addresses: four},
		{name: "clients at leisure", leisure: 400 * time.Millisecond, longest: 100 * time.Millisecond, addresses: four},
		{name: "slow work", work: 400 * time.Millisecond, longest: 100 * time.Millisecond, addresses: six},
	}
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	var listeners []net.Listener
	var ports []uint16
	for i := range tests {
		ports = append(ports, uint16(port+i))
		ln, err := srv.Listen("tcp", fmt.Sprintf(":%d", port+i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		listeners = append(listeners, ln)
	}
	startAgent(t, srv, 0, func(r *config.Rule) {
		fixed(100)(r)
		r.Ports, r.Signal = ports, config.SignalAccept
	})
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // to wait is most of it
			ln, to := listeners[i], netip.AddrPortFrom(test.addresses(srv), ports[i])
			var mu sync.Mutex
			var waits []time.Duration
			connected := make(map[string]time.Time)
			var all sync.WaitGroup
			all.Go(func() {
				for range clients {
					time.Sleep(test.pause)
					c, err := ln.Accept()
					if err != nil {
						t.Error(err)
						return
					}
					all.Go(func() {
						defer c.Close()
						if !test.greets {
							_, _ = c.Read(make([]byte, 1))
						}
						touched := time.Now()
						time.Sleep(test.work)
						_, _ = c.Write([]byte("!"))
						_, _ = c.Read(make([]byte, 1)) // the client goes first
						mu.Lock()
						defer mu.Unlock()
						waits = append(waits, touched.Sub(connected[c.RemoteAddr().String()]))
					})
				}
			})
			for range clients {
				all.Go(func() {
					var c net.Conn
					d := new(net.Dialer)
					d.SetMultipathTCP(test.multipath)
					err := cli.Do(func() (err error) {
						c, err = d.Dial("tcp", to.String())
						return err
					})
					if err != nil {
						t.Error(err)
						return
					}
					defer c.Close()
					mu.Lock()
					connected[c.LocalAddr().String()] = time.Now()
					mu.Unlock()
					if !test.greets {
						time.Sleep(test.leisure)
						_, _ = c.Write([]byte(cmp.Or(test.request, "?")))
					}
					for range test.pieces {
						time.Sleep(15 * time.Millisecond)
						_, _ = c.Write([]byte("?"))
					}
					_, _ = c.Read(make([]byte, 1))
				})
			}
			all.Wait()

			h := measured(t, i, loader.Lifetime)
			if h.Count != clients {
				t.Errorf("%d connections were timed, want %d", h.Count, clients)
			}
			slices.Sort(waits)
			got, least, most := h.Quantile(0.5), waits[clients/2-2], waits[clients/2+1]
			t.Logf("a wait of %v in the median; server and clients saw %v", got, waits)
			if test.longest > 0 {
				if longest := h.Quantile(1); longest > test.longest {
					t.Errorf("the longest wait is %v", longest)
				}
			} else if got < least || got > most {
				t.Errorf("a wait of %v in the median, want %v to %v", got, least, most)
			}
		})
	}
}

// A connection whose first read went by while no agent was there is none that waits
// until the server writes: neither while that is so nor when the next agent is there.
func TestAcceptWaitUnseen(t *testing.T) {
	srv, cli, to := hosts(t)
	ln, err := srv.Listen("tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	served := func() net.Conn {
		t.Helper()
		client := dial(t, cli, to)
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := client.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	answer := func(c net.Conn, timed uint64, when string) {
		t.Helper()
		if _, err := c.Write([]byte("!")); err != nil {
			t.Fatal(err)
		}
		if n := measured(t, 0, loader.Lifetime).Count; n != timed {
			t.Errorf("%s: %d connections are timed, want %d", when, n, timed)
		}
	}
	cfg := configFor(srv, port, func(r *config.Rule) {
		fixed(100)(r)
		r.Signal = config.SignalAccept
	})
	cfg.Window, cfg.Lease = 20*time.Millisecond, 500*time.Millisecond
	first := start(t, cfg)
	answer(served(), 1, "an agent is there")
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(cfg.Lease)
	early, late := served(), served()
	answer(early, 1, "no agent is there")
	start(t, cfg)
	answer(late, 1, "the next agent is there")
	answer(served(), 2, "a new connection")
}

func four(h *lab.Host) netip.Addr { return h.Addr4 }
func six(h *lab.Host) netip.Addr  { return h.Addr6 }

// A limit that follows the wait falls when all workers have something to do, and
// not because what they do takes long. What is reported is the wait.
func TestLimitFollowsAccept(t *testing.T) {
	const carries, initial = 8, 20
	tests := []struct {
		name    string
		workers int // connections at once; 0: any number
		work    time.Duration
		falls   bool
	}{
		{"a worker for some", carries, work, true},
		{"a worker for everybody, slow", 0, 10 * work, false},
	}
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	var all []config.Rule
	for i, test := range tests {
		serveAt(t, srv, uint16(port+i), backend.Spec{Protocol: "http", Service: test.work, MaxConns: test.workers})
		all = append(all, rule(srv, fmt.Sprint("r", i), uint16(port+i), func(r *config.Rule) {
			r.Signal = config.SignalAccept
			r.Limit = config.Limit{Algorithm: "aimd", Params: controller.Params{
				Initial: new(initial), Min: new(1), BackoffRatio: new(0.5), Timeout: new(work / 2),
			}}
		}))
	}
	a := start(t, rules(all...))
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var rec load.Recorder
			err := cli.Do(func() error {
				return load.Run(t.Context(), load.Config{
					Target:   netip.AddrPortFrom(srv.Addr4, uint16(port+i)),
					Arrivals: load.Poisson(1, load.Step{Rate: 3 * carries / work.Seconds(), For: 2500 * time.Millisecond}),
					Request:  load.Get("/"),
					Timeout:  patience,
				}, rec.Record)
			})
			if err != nil {
				t.Fatal(err)
			}
			st := targetOf(t, a, fmt.Sprint("r", i))
			t.Logf("limit %d, a wait of %v s; %+v", st.Limit, st.Window.MeanSeconds, rec.Counts())
			if falls := st.Limit < initial*3/4; falls != test.falls {
				t.Errorf("the limit is %d, and was %d", st.Limit, initial)
			}
			if long := st.Window.MeanSeconds > (work / 2).Seconds(); st.Window.Samples == 0 || !test.falls && long {
				t.Errorf("a wait of %v s is reported, of %d connections", st.Window.MeanSeconds, st.Window.Samples)
			}
		})
	}
}
