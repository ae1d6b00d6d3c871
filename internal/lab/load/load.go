// Package load is an open-loop load generator for TCP servers: it begins a
// request when the schedule says so, however late the answers to earlier ones
// are, with a new connection for each. Latencies count from the scheduled
// arrival, so a generator that falls behind shows as latency and is not hidden
// (no coordinated omission).
package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Config says what Run does.
type Config struct {
	Target   netip.AddrPort
	Arrivals Arrivals

	// Sources are local addresses that are used in turn, so that the ports of
	// one are not used up by connections in TIME_WAIT. Empty leaves the choice
	// to the kernel.
	Sources []netip.Addr

	// Request is what is sent on each connection; Get makes one. The server
	// has to close the connection after its answer.
	Request []byte

	// Turns, where there are any, are what is said on each connection in place of
	// Request, one after the other. The client closes after the last answer, which
	// is when the request is answered.
	Turns []Turn

	// Timeout ends a request that has no full answer so long after its
	// scheduled arrival. 0 means 2 s.
	Timeout time.Duration

	// MaxOutstanding bounds how many requests are open at once; what arrives
	// beyond is not sent, and reported as Unsent. 0 means 8000. Run fails at
	// once when the process may not open so many files.
	MaxOutstanding int
}

// Get returns a request for a path that asks the server to close.
func Get(path string) []byte {
	return []byte("GET " + path + " HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")
}

// Outcome is how a request ended.
type Outcome uint8

// The outcomes of a request.
const (
	Answered Outcome = iota // a whole response with a status of 2xx, or all turns
	Refused                 // the connection was refused (ECONNREFUSED)
	Reset                   // the connection was reset, or closed before a response
	TimedOut                // no whole response within Timeout
	Failed                  // a whole response with another status, or another answer
	Unsent                  // too many outstanding, or no socket: the generator's fault
	outcomes
)

// String returns the outcome's name, as used in JSON.
func (o Outcome) String() string {
	if o >= outcomes {
		return fmt.Sprintf("outcome(%d)", uint8(o))
	}
	return [outcomes]string{"answered", "refused", "reset", "timed_out", "failed", "unsent"}[o]
}

// Result is one request.
type Result struct {
	At      time.Duration // its scheduled arrival, since the begin of the run
	Latency time.Duration // from At until it ended
	Outcome Outcome
}

// Run works through the schedule and calls report for each request when it
// has ended, on the calling goroutine. It stays on the calling thread, and so
// in that thread's network namespace. It returns when all requests have ended,
// or early with the context's error; what is outstanding then is not reported.
func Run(ctx context.Context, cfg Config, report func(Result)) error {
	if cfg.Timeout == 0 {
		cfg.Timeout = 2 * time.Second
	}
	if cfg.MaxOutstanding == 0 {
		cfg.MaxOutstanding = 8000
	}
	if err := raiseFileLimit(uint64(cfg.MaxOutstanding) + 256); err != nil {
		return err
	}
	g, err := newGenerator(cfg, report)
	if err != nil {
		return err
	}
	defer g.close()
	return g.run(ctx)
}

// raiseFileLimit lets this process have n open files.
func raiseFileLimit(n uint64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("reading the limit of open files: %w", err)
	}
	if limit.Cur >= n {
		return nil
	}
	limit.Cur, limit.Max = n, max(limit.Max, n)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raising the limit of open files to %d: %w", n, err)
	}
	return nil
}

// request is one open connection.
type request struct {
	fd        int
	at        time.Duration
	connected bool
	done      bool
	head      [12]byte // "HTTP/1.1 200", as far as it has come
	headLen   int
	turn      int    // of the dialogue
	tail      []byte // of the answer to it
}

func (r *request) status2xx() bool {
	return r.headLen == len(r.head) && r.head[9] == '2'
}

type generator struct {
	cfg    Config
	report func(Result)
	begin  time.Time

	epoll, timer int
	armed        time.Duration      // the arrival that the timer is set for
	open         map[int32]*request // by file descriptor
	queue        []*request         // the same, and ended ones, by arrival
	source       int
	buf          []byte
}

func newGenerator(cfg Config, report func(Result)) (*generator, error) {
	g := &generator{cfg: cfg, report: report, open: map[int32]*request{}, buf: make([]byte, 64<<10), timer: -1}
	var err error
	if g.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	// A timer, because the timeout of epoll_wait counts milliseconds.
	if g.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		g.close()
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	event := &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(g.timer)}
	if err := unix.EpollCtl(g.epoll, unix.EPOLL_CTL_ADD, g.timer, event); err != nil {
		g.close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return g, nil
}

func (g *generator) close() {
	for _, r := range g.open {
		_ = unix.Close(r.fd)
	}
	_ = unix.Close(g.epoll)
	if g.timer >= 0 {
		_ = unix.Close(g.timer)
	}
}

// burst is how many late arrivals are begun before answers are looked at.
const burst = 32

func (g *generator) run(ctx context.Context) error {
	events := make([]unix.EpollEvent, 256)
	g.begin = time.Now()
	next, more := g.cfg.Arrivals()
	for more || len(g.open) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		now := time.Since(g.begin)
		for range burst {
			if !more || next > now {
				break
			}
			g.start(next)
			next, more = g.cfg.Arrivals()
		}
		g.expire(now)
		if err := g.wait(events, next, more); err != nil {
			return err
		}
	}
	return nil
}

// wait handles events until the next arrival or the next timeout; at most
// 50 ms, to notice the end of the context.
func (g *generator) wait(events []unix.EpollEvent, next time.Duration, more bool) error {
	now := time.Since(g.begin)
	timeout := 50
	switch {
	case more && next <= now:
		timeout = 0
	case more && next != g.armed:
		spec := &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(next - now))}
		if err := unix.TimerfdSettime(g.timer, 0, spec, nil); err != nil {
			return fmt.Errorf("timerfd: %w", err)
		}
		g.armed = next
	}
	if len(g.queue) > 0 {
		left := g.queue[0].at + g.cfg.Timeout - now
		timeout = min(timeout, max(0, int(left/time.Millisecond)+1))
	}
	n, err := unix.EpollWait(g.epoll, events, timeout)
	if err != nil && err != unix.EINTR {
		return fmt.Errorf("epoll: %w", err)
	}
	for _, e := range events[:max(n, 0)] {
		if r := g.open[e.Fd]; r != nil {
			g.step(r)
		}
	}
	return nil
}

// start begins the request that arrived at that time.
func (g *generator) start(at time.Duration) {
	if len(g.open) >= g.cfg.MaxOutstanding {
		g.end(&request{fd: -1, at: at}, Unsent)
		return
	}
	fd, err := g.connect()
	r := &request{fd: fd, at: at}
	if err != nil && err != unix.EINPROGRESS {
		g.end(r, connectOutcome(err))
		return
	}
	// Edge-triggered for both directions: one call for a connection's life.
	event := &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET, Fd: int32(fd)}
	if err := unix.EpollCtl(g.epoll, unix.EPOLL_CTL_ADD, fd, event); err != nil {
		g.end(r, Unsent)
		return
	}
	g.open[int32(fd)] = r
	g.queue = append(g.queue, r)
}

// connect returns a socket that is being connected, also with an error.
func (g *generator) connect() (int, error) {
	family := unix.AF_INET6
	if g.cfg.Target.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if len(g.cfg.Sources) > 0 {
		source := g.cfg.Sources[g.source]
		g.source = (g.source + 1) % len(g.cfg.Sources)
		// The port is chosen at connect, when the whole tuple is known.
		if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
			return fd, err
		}
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(source, 0))); err != nil {
			return fd, err
		}
	}
	return fd, unix.Connect(fd, sockaddr(g.cfg.Target))
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// connectOutcome classes the error of a connection attempt.
func connectOutcome(err error) Outcome {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return Refused
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return Reset
	case errors.Is(err, unix.ETIMEDOUT):
		return TimedOut
	}
	return Unsent
}

// step does what is possible on a connection now.
func (g *generator) step(r *request) {
	if !r.connected {
		code, err := unix.GetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if err != nil {
			g.end(r, connectOutcome(err))
			return
		}
		// A fresh connection takes a whole request, or is none yet.
		_, err = unix.Write(r.fd, g.cfg.first())
		if err == unix.EAGAIN || err == unix.ENOTCONN {
			return
		}
		if err != nil {
			g.end(r, connectOutcome(err))
			return
		}
		r.connected = true
	}
	g.read(r)
}

func (g *generator) read(r *request) {
	for {
		n, err := unix.Read(r.fd, g.buf)
		switch {
		case err == unix.EAGAIN:
			return
		case err == unix.EINTR:
			continue
		case err != nil, n == 0 && r.headLen == 0:
			g.end(r, Reset)
			return
		case n == 0 && len(g.cfg.Turns) == 0 && r.status2xx():
			g.end(r, Answered)
			return
		case n == 0:
			g.end(r, Failed)
			return
		case len(g.cfg.Turns) > 0:
			if g.hear(r, g.buf[:n]); r.done {
				return
			}
			continue
		}
		r.headLen += copy(r.head[r.headLen:], g.buf[:n])
	}
}

// expire ends the requests whose time is over. The queue is in the order of
// arrival, and all have the same timeout.
func (g *generator) expire(now time.Duration) {
	for len(g.queue) > 0 {
		r := g.queue[0]
		if !r.done {
			if now < r.at+g.cfg.Timeout {
				return
			}
			g.end(r, TimedOut)
		}
		g.queue[0] = nil
		g.queue = g.queue[1:]
	}
}

func (g *generator) end(r *request, outcome Outcome) {
	latency := time.Since(g.begin) - r.at
	if r.fd >= 0 {
		_ = unix.Close(r.fd)
		delete(g.open, int32(r.fd))
	}
	r.done = true
	g.report(Result{At: r.at, Latency: latency, Outcome: outcome})
}
