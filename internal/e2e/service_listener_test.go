package e2e

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/agent"
	"headgate/pkg/loader"
)

// A process that listens moves to another cgroup. Its sockets stay where they
// were made: what is counted and timed goes on to be, by this agent and by one
// that comes later, and even when the old cgroup is gone. Only an agent that
// starts after that cannot time them: it says so, and counts.
func TestServiceOfMovedListener(t *testing.T) {
	srv, cli, to := hosts(t)
	old, next := subCgroup(t, srv, "old"), subCgroup(t, srv, "next")
	server, err := srv.StartServerIn(t.Context(), old, backend.Spec{Protocol: "http", Listen: []string{fmt.Sprintf(":%d", port)}})
	if err != nil {
		t.Fatal(err)
	}
	var log words
	begin := func() *agent.Agent {
		t.Helper()
		a, err := agent.Start(configFor(srv, port, fixed(1000)), "test", slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Remove() })
		return a
	}
	var samples, admitted uint64
	ask := func(what string, a *agent.Agent, timed bool) {
		t.Helper()
		httpClient{path: "/"}.run(t, cli, to)
		if timed {
			samples += asked
		}
		if got := measured(t, 0, loader.Service).Count; got != samples {
			t.Errorf("%s: %d samples, want %d", what, got, samples)
		}
		await(t, what+": all is counted", func() (any, bool) {
			st := target(a)
			return st, st.AdmittedTotal > admitted && st.InFlight == 0 && st.FinishedTotal == st.AdmittedTotal
		})
		admitted = target(a).AdmittedTotal
	}
	restart := func(a *agent.Agent) *agent.Agent {
		t.Helper()
		if err := a.Stop(); err != nil {
			t.Fatal(err)
		}
		return begin()
	}

	a := begin()
	ask("before", a, true)
	if err := os.WriteFile(filepath.Join(next.Path, "cgroup.procs"), []byte(strconv.Itoa(server.PID())), 0); err != nil {
		t.Fatal(err)
	}
	ask("moved", a, true)
	a = restart(a)
	ask("moved, under the next agent", a, true)
	if err := unix.Rmdir(old.Path); err != nil {
		t.Fatal(err)
	}
	ask("its cgroup is gone", a, true)
	if strings.Contains(log.String(), "not measured") {
		t.Errorf("it said that nothing is measured: %s", &log)
	}

	if err := a.Remove(); err != nil {
		t.Fatal(err)
	}
	a, samples, admitted = begin(), 0, 0
	ask("an agent that came after that", a, false)
	await(t, "it says so", func() (any, bool) { return log.String(), strings.Count(log.String(), "not measured") == 1 })
}

// words are what an agent has said. Safe for concurrent use.
type words struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *words) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// The request that comes with the last packet of a handshake, or with the first,
// is timed like those after it.
func TestServiceOfRequestInHandshake(t *testing.T) {
	const conns, work = 10, 20 * time.Millisecond
	for name, tt := range map[string]struct {
		option int
		fast   bool
	}{
		"TCP_DEFER_ACCEPT": {option: unix.TCP_DEFER_ACCEPT},
		"TCP Fast Open":    {option: unix.TCP_FASTOPEN, fast: true},
	} {
		t.Run(name, func(t *testing.T) {
			srv, cli, to := hosts(t)
			for _, h := range []*lab.Host{srv, cli} {
				if err := h.Sysctl("net.ipv4.tcp_fastopen", "519"); err != nil {
					t.Fatal(err)
				}
			}
			ln := listenRaw(t, srv, 64, setTCP(tt.option, 64))
			go answerSlowly(ln, work)
			startAgent(t, srv, port, fixed(1000))
			for range conns {
				d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
					if !tt.fast {
						return nil
					}
					return raw.Control(func(fd uintptr) {
						_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1)
					})
				}}
				var c net.Conn
				err := cli.Do(func() (err error) {
					c, err = d.DialContext(t.Context(), "tcp", to.String())
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if err := exchange(c.(*net.TCPConn), 'x'); err != nil {
						t.Fatal(err)
					}
				}
				c.Close()
			}
			got := measured(t, 0, loader.Service)
			if low := got.Quantile(0); got.Count != 2*conns || low < work*9/10 || low > 2*work {
				t.Errorf("%d samples, the least %v; want %d of %v", got.Count, low, 2*conns, work)
			}
		})
	}
}

// answerSlowly says what it is told, after a time, until the listener closes.
func answerSlowly(ln net.Listener, after time.Duration) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			b := make([]byte, 1)
			for {
				if _, err := c.Read(b); err != nil {
					return
				}
				time.Sleep(after)
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}()
	}
}
