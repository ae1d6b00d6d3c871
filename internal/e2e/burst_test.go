package e2e

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/controller"
)

// startAgent starts an agent with one rule for a port of a host.
func startAgent(t *testing.T, h *lab.Host, port uint16, set func(*config.Rule)) *agent.Agent {
	t.Helper()
	cfg := config.Default()
	cfg.State = filepath.Join(bpffs, "state")
	r := config.DefaultRule()
	r.Name = "test"
	r.Ports = []uint16{port}
	r.Scope = config.Scope{Netns: h.NetNS}
	r.Mode = config.ModeEnforce
	set(&r)
	cfg.Rules = []config.Rule{r}
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

func TestBurst(t *testing.T) {
	const limit, burst = 50, 1000
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	ln, err := srv.Listen("tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var mu sync.Mutex
	var accepted []net.Conn
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			accepted = append(accepted, c)
			mu.Unlock()
		}
	}()
	a := startAgent(t, srv, 8080, fixed(limit))
	for round := range 3 {
		var ok, refused, other int
		var conns []net.Conn
		var wg sync.WaitGroup
		for range burst {
			wg.Go(func() {
				c, err := cli.Dial(t.Context(), "tcp", fmt.Sprintf("%s:8080", srv.Addr4))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					ok++
					conns = append(conns, c)
				case errors.Is(err, syscall.ECONNREFUSED):
					refused++
				default:
					other++
					t.Log(err)
				}
			})
		}
		wg.Wait()
		time.Sleep(250 * time.Millisecond)
		st := a.Status().Targets[0]
		t.Logf("round %d: ok %d refused %d other %d status %+v", round, ok, refused, other, st)
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		for _, c := range accepted {
			c.Close()
		}
		accepted = nil
		mu.Unlock()
		time.Sleep(250 * time.Millisecond)
		st = a.Status().Targets[0]
		t.Logf("after: in flight %d pending %d admitted %d finished %d %+v", st.InFlight, st.Pending, st.AdmittedTotal, st.FinishedTotal, a.Snapshot().ProgramsAttached)
	}
}
