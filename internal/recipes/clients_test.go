package recipes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/load"
)

// site is a server and its clients.
type site struct {
	recipe
	srv, cli *lab.Host
	to       netip.AddrPort
	sources  []netip.Addr // of the clients
	inside   func() int   // see recipe.start; nil where the server does not count
}

// checker is where health checks come from: of the network that the examples exempt.
var checker = netip.MustParsePrefix("10.0.0.9/24")

func (s *site) addAddresses(t *testing.T) {
	t.Helper()
	add := []netip.Prefix{checker}
	for i := range 16 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 83, 1, byte(100 + i)}), 24)
		add, s.sources = append(add, p), append(s.sources, p.Addr())
	}
	if err := errors.Join(s.cli.AddAddr("srv", add...), s.srv.AddRoute("cli", checker.Masked(), s.cli.Addr4)); err != nil {
		t.Fatal(err)
	}
}

// begin connects, from an address or any, and logs in.
func (s *site) begin(ctx context.Context, from netip.Addr) (c *load.Session, err error) {
	err = s.cli.Do(func() (err error) {
		c, err = load.Dial(ctx, from, s.to, s.login...)
		return err
	})
	return c, err
}

// visit is one request of a client who comes for that alone.
func (s *site) visit(ctx context.Context, from netip.Addr, ask load.Turn) error {
	c, err := s.begin(ctx, from)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Say(ask)
}

// alone returns how long a request takes when there is no other one. The first
// ones wait for the server to be ready, and are not counted.
func (s *site) alone(t *testing.T) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lab.Allow(20*time.Second))
	defer cancel()
	var took []time.Duration
	for len(took) < 5 {
		asked := time.Now()
		if err := s.visit(ctx, netip.Addr{}, s.ask); err != nil {
			if ctx.Err() != nil || len(took) > 0 {
				t.Fatalf("one request alone: %v", err)
			}
			time.Sleep(20 * time.Millisecond)
			continue
		}
		took = append(took, time.Since(asked))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// measurement is what clients got.
type measurement struct {
	load.Summary
	refusal time.Duration // the median time
	checks  checks
	most    int // connections of clients at once, by the kernel's own tables
	inside  int // requests in the server at once, by its own count; 0 where it has none
}

func (m measurement) describe(alone time.Duration) string {
	in := func(s float64) float64 { return s / alone.Seconds() }
	text := fmt.Sprintf("offered %.0f/s, good %.0f/s", m.Offered(), m.Goodput())
	if m.Answered > 0 {
		text += fmt.Sprintf(", p50 %.1f and p99 %.1f times one alone", in(m.P50Seconds), in(m.P99Seconds))
	}
	text += fmt.Sprintf("; of %d: %d refused and %d reset after %v, %d too late, %d failed; %d connections",
		m.Arrived, m.Refused, m.Reset, m.refusal.Round(10*time.Microsecond), m.TimedOut, m.Failed, m.most)
	if m.inside > 0 {
		text += fmt.Sprintf(", %d inside", m.inside)
	}
	return text + "; " + m.checks.String()
}

// offer sends requests at so many times the capacity for lead and d, and says
// what became of those after lead. Health checks go on meanwhile.
func (s *site) offer(t *testing.T, times float64, d, lead, bound time.Duration) measurement {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var m measurement
	var beside sync.WaitGroup
	beside.Go(func() { m.checks = s.checkHealth(ctx) })
	beside.Go(func() { m.most = s.watch(ctx, t) })

	arrivals := load.Poisson(7, load.Step{Rate: times * s.capacity, For: lead + d})
	var rec load.Recorder
	var refusals []time.Duration
	record := func(r load.Result) {
		if r.Outcome == load.Refused || r.Outcome == load.Reset {
			refusals = append(refusals, r.Latency)
		}
		rec.Record(r)
	}
	var err error
	if s.pool > 0 {
		p := load.Pool{
			Open: func(ctx context.Context) (*load.Session, error) { return s.begin(ctx, netip.Addr{}) },
			Max:  s.pool, Pause: time.Millisecond, Acquire: patience, Timeout: patience,
		}
		_, err = p.Run(ctx, arrivals, []load.Turn{s.ask}, record)
	} else {
		err = s.cli.Do(func() error {
			return load.Run(ctx, load.Config{
				Target: s.to, Arrivals: arrivals, Sources: s.sources,
				Turns: append(slices.Clone(s.login), s.ask), Timeout: patience,
			}, record)
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	beside.Wait()
	if s.inside != nil {
		m.inside = s.inside()
	}
	m.Summary = rec.Summarize(lead, lead+d, bound)
	if len(refusals) > 0 {
		slices.Sort(refusals)
		m.refusal = refusals[len(refusals)/2]
	}
	return m
}

// checks are health checks.
type checks struct {
	asked, failed int
	slowest       time.Duration
	last          error // of those that failed
}

func (c checks) String() string {
	text := fmt.Sprintf("%d of %d health checks failed, the slowest took %v", c.failed, c.asked, c.slowest.Round(time.Millisecond))
	if c.last != nil {
		text += fmt.Sprintf(" (%v)", c.last)
	}
	return text
}

// checkHealth asks ten times a second, until ctx ends.
func (s *site) checkHealth(ctx context.Context) (c checks) {
	for ctx.Err() == nil {
		asked := time.Now()
		within, cancel := context.WithTimeout(ctx, patience)
		err := s.visit(within, checker.Addr(), s.health)
		cancel()
		if ctx.Err() != nil {
			return c // cut short
		}
		c.asked++
		if err != nil {
			c.failed, c.last = c.failed+1, err
		}
		c.slowest = max(c.slowest, time.Since(asked))
		time.Sleep(time.Until(asked.Add(100 * time.Millisecond)))
	}
	return c
}

// From linux/tcp_states.h.
const (
	tcpEstablished = 1
	tcpCloseWait   = 8
)

// watch returns the most connections of clients that the server's kernel had at
// once until ctx ended. The kernel lists sockets one after the other while they
// come and go: those that two lists in a row have were there at the same time.
func (s *site) watch(ctx context.Context, t *testing.T) (most int) {
	var before map[netip.AddrPort]bool
	for ctx.Err() == nil {
		open, err := s.srv.Sockets(s.to.Port(), tcpEstablished, tcpCloseWait)
		if err != nil {
			t.Error(err)
			return 0
		}
		now, both := map[netip.AddrPort]bool{}, 0
		for _, a := range open {
			if a.Addr() == checker.Addr() {
				continue
			}
			now[a] = true
			if before[a] {
				both++
			}
		}
		before, most = now, max(most, both)
		time.Sleep(5 * time.Millisecond)
	}
	return most
}
