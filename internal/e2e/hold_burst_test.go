package e2e

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
)

// briefServer closes each connection after a time.
func briefServer(t *testing.T, h *lab.Host, service time.Duration) {
	t.Helper()
	ln, err := h.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			time.AfterFunc(service, func() { c.Close() })
		}
	}()
}

// Of hundreds that come at the same moment all come in, one after the other,
// and never more than the limit at once: also when a handshake takes long, and
// when the kernel keeps no record of it.
func TestHeldBurst(t *testing.T) {
	const clients, limit, service = 300, 20, 10 * time.Millisecond
	for name, path := range map[string]func(*testing.T) (srv, cli *lab.Host, to netip.AddrPort){
		"veth": hosts,
		"SYN cookies": func(t *testing.T) (srv, cli *lab.Host, to netip.AddrPort) {
			srv, cli, to = hosts(t)
			if err := srv.Sysctl("net.ipv4.tcp_syncookies", "2"); err != nil {
				t.Fatal(err)
			}
			return srv, cli, to
		},
		"100 ms away": func(t *testing.T) (srv, cli *lab.Host, to netip.AddrPort) {
			w := wired(t, func(f *lab.Frame) {
				if s, ok := f.Segment(); ok && s.Has(lab.SYN|lab.ACK, lab.SYN|lab.ACK) {
					f.Delay(100 * time.Millisecond)
				}
			})
			return w.A.Host, w.B.Host, netip.AddrPortFrom(w.A.Addr6, port)
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv, cli, to := path(t)
			a := startHolding(t, srv, holding(limit, time.Minute))
			briefServer(t, srv, service)
			peak := watchPeak(t)
			c := newCrowd(t, cli, to, clients)
			c.wait(t, patience)
			if len(c.connected) != clients {
				t.Errorf("%v; want all connected", c)
			}
			t.Logf("%d at a limit of %d: the last came in after %v", clients, limit, quantile(c.admitted, 1))
			if n := peak(); n != limit {
				t.Errorf("at most %d were in flight, want %d", n, limit)
			}
			// The server closes first: where it comes second, its FIN may overtake its
			// ACK, and of the client's answer to that the kernel makes a connection
			// more (TestCookieOfFIN).
			empty(t, a)
			c.close()
			await(t, "all are counted", func() (any, bool) {
				st := target(a)
				return st, st.AdmittedTotal == clients && st.FinishedTotal == clients && rejectedInAll(st) == 0 && st.BypassedTotal == 0
			})
		})
	}
}

// One agent holds in two namespaces at once, each slot for its own.
func TestHeldInTwoScopes(t *testing.T) {
	const clients = 100
	l := lab.ForTest(t, "mid", "one", "two", "cli")
	servers := []*lab.Host{l.Host("one"), l.Host("two")}
	cfg := configFor(servers[0], port, holding(1, time.Minute))
	second := cfg.Rules[0]
	second.Name = "second"
	second.Scope = config.Scope{Netns: servers[1].NetNS}
	cfg.Rules = append(cfg.Rules, second)
	a, err := agent.Start(cfg, "test", slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Remove(); err != nil {
			t.Errorf("remove the agent: %v", err)
		}
	})
	var crowds []*crowd
	var keepers []*keeper
	for _, srv := range servers {
		k := keep(t, srv, "tcp", ":8080")
		to := netip.AddrPortFrom(srv.Addr4, port)
		dial(t, l.Host("cli"), to)
		k.await(t, 1)
		keepers = append(keepers, k)
		crowds = append(crowds, newCrowd(t, l.Host("cli"), to, clients))
	}
	waiting := func(n ...int) {
		t.Helper()
		await(t, fmt.Sprintf("%v wait", n), func() (any, bool) {
			st := a.Status().Targets
			got := []int{st[0].Waiting, st[1].Waiting}
			return st, slices.Equal(got, n)
		})
	}
	waiting(clients, clients)
	for i, k := range keepers {
		var took []time.Duration
		for range clients {
			freed := time.Now()
			k.close(1)
			k.await(t, 1)
			k.mu.Lock()
			took = append(took, k.times[len(k.times)-1].Sub(freed))
			k.mu.Unlock()
		}
		if p50 := quantile(took, 0.5); p50 > lab.Allow(time.Millisecond) {
			t.Errorf("scope %d: the next one had its slot after %v as a rule", i, p50)
		}
		crowds[i].wait(t, patience)
		if len(crowds[i].connected) != clients {
			t.Errorf("scope %d: %v", i, crowds[i])
		}
		if i == 0 {
			waiting(0, clients)
		}
	}
	waiting(0, 0)
}
