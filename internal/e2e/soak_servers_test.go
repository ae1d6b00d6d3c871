package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/internal/lab/load"
)

// visitTimeout is how long a visit may take: nobody is held for longer than half a
// second, an agent that hangs lets go after a lease, and TCP may send again what was
// lost then, after 1, 2 and 4 seconds.
var visitTimeout = lab.Allow(15 * time.Second)

// guests are how many clients a house has; pgbench comes to one as two more.
const guests = 8

// house is a real server of a soak, with a rule of its own.
type house struct {
	name string
	port uint16

	// room, above 0, is the least limit that is drawn. It is enough for all who
	// come, and so nobody may be refused at any time.
	room int

	login []load.Turn
	ask   load.Turn
	start func(context.Context, *testing.T, *lab.Host, int) *lab.Daemon

	daemon  *lab.Daemon
	served  atomic.Int64 // answers
	refused atomic.Int64
}

// houses are servers that take connections in four ways: a process with events, one
// behind another, a single thread, and a process for each.
func houses() []*house {
	return []*house{
		{name: "nginx", port: 8090, ask: load.HTTP("/"), start: soakNginx},
		{name: "haproxy", port: 8091, ask: load.HTTP("/"), room: 2 * guests, start: soakHAProxy},
		{name: "redis", port: 8092, ask: load.RedisCommand("+OK", "DEBUG", "SLEEP", "0.001"), start: func(ctx context.Context, t *testing.T, h *lab.Host, port int) *lab.Daemon {
			return started(h.StartRedis(ctx, port))(t)
		}},
		{name: "postgres", port: 8093, login: []load.Turn{load.PostgresLogin()}, ask: load.PostgresQuery("select pg_sleep(0.01)"), room: 100, start: soakPostgres},
	}
}

func started(d *lab.Daemon, err error) func(*testing.T) *lab.Daemon {
	return func(t *testing.T) *lab.Daemon {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

func soakNginx(ctx context.Context, t *testing.T, h *lab.Host, port int) *lab.Daemon {
	return started(h.StartNginx(ctx, lab.Nginx{Port: port}))(t)
}

// soakHAProxy starts an HAProxy before an application that nothing protects.
func soakHAProxy(ctx context.Context, t *testing.T, h *lab.Host, port int) *lab.Daemon {
	t.Helper()
	app := backend.Spec{Protocol: "http", Listen: []string{fmt.Sprintf(":%d", upstream)}, Workers: 100, Service: 10 * time.Millisecond}
	if _, err := h.StartServer(ctx, app); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	text := fmt.Sprintf(`global
	maxconn 1000
	nbthread 1
defaults
	mode http
	timeout connect 5s
	timeout client 1h
	timeout server 1h
frontend shop
	bind :::%d v4v6
	default_backend app
backend app
	server one 127.0.0.1:%d
`, port, upstream)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return started(h.StartProgram(ctx, port, "haproxy", "-db", "-f", file))(t)
}

func soakPostgres(ctx context.Context, t *testing.T, h *lab.Host, port int) *lab.Daemon {
	t.Helper()
	pg, err := h.StartPostgres(ctx, port, 100)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "PostgreSQL does not only listen, but answers", func() (any, bool) {
		c, err := h.Dial(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err, false
		}
		defer c.Close()
		err = say(c, load.PostgresLogin())
		return err, err == nil
	})
	return pg.Daemon
}

// rule draws a rule for the house.
func (h *house) rule(r *rand.Rand) string {
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	rule := fmt.Sprintf("- name: %s\n  port: %d\n", h.name, h.port)
	bounds := fmt.Sprintf("initial: %d, min: 1, max: 100", 1+r.IntN(20))
	if h.room > 0 {
		bounds = fmt.Sprintf("initial: %[1]d, min: %[1]d, max: 1000", h.room)
	}
	signal := pick("service", "service", "rtt", "connection", "accept")
	algorithm := pick("fixed", "guarded", "guarded", "gradient2", "aimd")
	if r.IntN(2) == 0 {
		rule += "  unit: request\n"
		if signal = pick("service", "rtt"); r.IntN(4) == 0 {
			rule += "  end: {idle: 20ms}\n"
		}
	}
	if signal == "accept" {
		algorithm = "aimd"
	}
	if algorithm == "fixed" {
		bounds, _, _ = strings.Cut(bounds, ",")
	}
	rule += fmt.Sprintf("  signal: %s\n  limit: {algorithm: %s, %s}\n", signal, algorithm, bounds)
	switch r.IntN(4) {
	case 0:
		rule += fmt.Sprintf("  hold: {max_wait: %dms, max_waiting: 1}\n", 1+r.IntN(500))
	case 1:
		rule += fmt.Sprintf("  hold: {max_wait: %dms, order: %s}\n", 1+r.IntN(500), pick("fifo", "lifo"))
	}
	if h.room > 0 {
		return rule
	}
	return rule + pick("", "", "  per_source: {limit: 3}\n", "  classes: [{name: partners, sources: [10.0.0.0/8], share: 0.3}]\n",
		"  pace: {rate: 200, max_wait: 100ms}\n")
}

// visit has one client come and ask so often, with pauses in which the others go on.
func (h *house) visit(s *soak, r *rand.Rand, times int) {
	err := h.talk(s, r, times)
	turned := errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.EOF)
	switch {
	case err == nil:
	case turned && h.room == 0:
		h.refused.Add(1)
	default:
		s.Errorf("%s: %v", h.name, err)
	}
}

func (h *house) talk(s *soak, r *rand.Rand, times int) (err error) {
	var conn net.Conn
	// Nobody comes, asks or goes while counts are compared; connections are open.
	step := func(what string, do func() error) bool {
		s.comers.still.RLock()
		defer s.comers.still.RUnlock()
		begin := time.Now()
		if err = do(); err != nil {
			err = fmt.Errorf("%s, for %v: %w", what, time.Since(begin), err)
		}
		return err == nil
	}
	to := netip.AddrPortFrom([]netip.Addr{s.srv.Addr4, s.srv.Addr6}[r.IntN(2)], h.port).String()
	ctx, cancel := context.WithTimeout(context.Background(), visitTimeout)
	defer cancel()
	dialed := func() (err error) {
		conn, err = s.cli.Dial(ctx, "tcp", to)
		return err
	}
	if !step("connect", dialed) {
		return err
	}
	defer func() {
		s.comers.still.RLock()
		defer s.comers.still.RUnlock()
		if r.IntN(3) == 0 {
			_ = conn.(*net.TCPConn).SetLinger(0)
		}
		conn.Close()
	}()
	for _, turn := range h.login {
		if !step("log in", func() error { return say(conn, turn) }) {
			return err
		}
	}
	for i := range times {
		if !step(fmt.Sprint("ask, time ", i), func() error { return say(conn, h.ask) }) {
			return err
		}
		h.served.Add(1)
		if i < times-1 {
			time.Sleep(time.Duration(r.IntN(50)) * time.Millisecond)
		}
	}
	return nil
}

// say takes a turn, and reads the answer.
func say(c net.Conn, turn load.Turn) error {
	if err := c.SetDeadline(time.Now().Add(visitTimeout)); err != nil {
		return err
	}
	if _, err := c.Write(turn.Send); err != nil {
		return err
	}
	var answer []byte
	for part := make([]byte, 4096); !turn.Ends(answer) || len(answer) < len(turn.Begin); {
		n, err := c.Read(part)
		answer = append(answer, part[:n]...)
		if err != nil {
			return err
		}
		if !turn.Begins(answer) {
			return fmt.Errorf("the answer is %.200q", answer)
		}
	}
	return nil
}

// open starts the houses, and has clients visit them until stop.
func (s *soak) open(seed uint64) (stop func()) {
	s.Helper()
	done := make(chan struct{})
	var clients sync.WaitGroup
	// Longer than the test, which ends before its clean-up: its clients go first.
	var end context.CancelFunc
	s.ctx, end = context.WithCancel(context.WithoutCancel(s.Context()))
	s.Cleanup(end)
	for i, h := range s.houses {
		h.daemon = h.start(s.ctx, s.T, s.srv, int(h.port))
		for j := range guests {
			r := rand.New(rand.NewPCG(seed, uint64(100*i+j+1)))
			clients.Go(func() {
				for {
					select {
					case <-done:
						return
					case <-time.After(time.Duration(r.IntN(40)) * time.Millisecond):
					}
					h.visit(s, r, [guests]int{1, 1, 1 + r.IntN(10), 1 + r.IntN(10), 100, 100, 1, 1}[j])
				}
			})
		}
	}
	bench := s.bench()
	stop = sync.OnceFunc(func() {
		close(done)
		clients.Wait()
		bench()
	})
	s.Cleanup(stop)
	return stop
}

// bench has pgbench make a connection for each transaction until stop. It gives up
// when one is refused.
func (s *soak) bench() (stop func()) {
	s.Helper()
	file := filepath.Join(s.TempDir(), "script.sql")
	if err := os.WriteFile(file, []byte("select 1;\n"), 0o600); err != nil {
		s.Fatal(err)
	}
	h := s.houses[len(s.houses)-1]
	s.pgbench = s.srv.Command(s.ctx, "pgbench", "-n", "-C", "-c", "2", "-R", "40", "-T", "1000000",
		"-h", "127.0.0.1", "-p", fmt.Sprint(h.port), "-U", "postgres", "-f", file, "postgres")
	var said strings.Builder
	s.pgbench.Stdout, s.pgbench.Stderr = &said, &said
	if err := s.pgbench.Start(); err != nil {
		s.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.pgbench.Wait() }()
	return func() {
		select {
		case err := <-ended:
			s.Errorf("pgbench has ended: %v: %s", err, &said)
		default:
			_ = s.pgbench.Process.Kill()
			<-ended
		}
	}
}

// compare compares, while nobody moves, what the agent counts for each house with
// what the kernel has.
func (s *soak) compare() {
	s.Helper()
	_ = s.pgbench.Process.Signal(syscall.SIGSTOP) // where it has ended, that is told
	defer func() { _ = s.pgbench.Process.Signal(syscall.SIGCONT) }()
	for _, h := range s.houses {
		awaitFor(s.T, 2*patience, h.name+": agent and kernel agree", func() (any, bool) {
			st, real := s.agent.targets(s.T)[h.port], connections(s.T, s.srv, h.port)
			units, open := real, 0
			if st.Unit == "request" {
				units, open = 0, real
			}
			return []any{real, st}, st.InFlight == units && st.Connections == open && st.Waiting == 0 && st.Pending == 0
		})
	}
}
