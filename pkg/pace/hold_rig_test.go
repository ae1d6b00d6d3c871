package pace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/netfilter"
	"headgate/pkg/scope"
)

const (
	testPort = 8080
	testMark = 0x10000000
	testNFQ  = 83
)

// allowance is of a machine that is busy with other things.
var allowance = lab.Allow(300 * time.Millisecond)

// fakeGate is the kernel's side: a limit, who is inside, who waits, and the
// pace slots. What it has not seen it takes for an arrival.
type fakeGate struct {
	mu       sync.Mutex
	limit    int
	interval uint64 // 0: unpaced
	slots    Slots
	waiting  map[Flow]Hold
	inside   map[Flow]bool
	order    []Flow
	gaveUp   int
	said     int  // calls of Delivered
	forgets  bool // knows nobody who is not inside
}

func newFakeGate(limit int) *fakeGate {
	return &fakeGate{limit: limit, waiting: make(map[Flow]Hold), inside: make(map[Flow]bool)}
}

func (g *fakeGate) Held(f Flow, _ uint32) (Hold, Standing, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside[f] {
		return Hold{}, HasSlot, nil
	}
	if g.forgets {
		return Hold{}, Unknown, nil
	}
	h, ok := g.waiting[f]
	if !ok {
		if g.interval > 0 {
			slot, _ := g.slots.Take(uint64(monotonic()), g.interval, 0, math.MaxUint64)
			h.Release = time.Duration(slot)
		}
		g.waiting[f] = h
	}
	return h, Waits, nil
}

func (g *fakeGate) Claim(f Flow, _ uint32) (Outcome, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch _, ok := g.waiting[f]; {
	case !ok:
		return Gone, nil
	case len(g.inside) >= g.limit:
		return Full, nil
	}
	delete(g.waiting, f)
	g.inside[f] = true
	g.order = append(g.order, f)
	if len(g.inside) == g.limit {
		return ClaimedLast, nil
	}
	return Claimed, nil
}

func (g *fakeGate) Delivered(Flow, uint32, uint32) (more bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.said++
	return false, nil
}

func (g *fakeGate) GiveUp(f Flow, _ uint32) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.waiting, f)
	g.gaveUp++
	return nil
}

// finish ends the n-th flow of all that came in.
func (g *fakeGate) finish(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.inside, g.order[n])
}

func (g *fakeGate) finishFlow(f Flow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.inside, f)
}

// calls reads one of the gate's own counts.
func (g *fakeGate) calls(n *int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return *n
}

func (g *fakeGate) setLimit(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limit = n
}

func (g *fakeGate) count() (waiting, inside int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting), len(g.inside)
}

// rig is a server whose packets are held, and a client.
type rig struct {
	t      *testing.T
	server *lab.Host
	client *lab.Host
	ns     *scope.Netns
	rule   netfilter.Rule
	gate   *fakeGate
	holder *Holder
	policy Policy
}

// What is marked, in the language of nft; the kernel's programs do it
// otherwise.
const (
	markSYNs     = "tcp flags & (syn|ack) == syn"
	markPayloads = "meta length > 100"
)

func newRig(t *testing.T, mark string, gate *fakeGate, p Policy) *rig {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("no nft: ", err)
	}
	l, err := lab.New("server", "client")
	if errors.Is(err, lab.ErrNotRoot) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &rig{t: t, server: l.Host("server"), client: l.Host("client"), gate: gate, policy: p}
	if r.policy.MaxWaiting == 0 {
		r.policy.MaxWaiting = 1000
	}
	if r.policy.MaxWait == 0 {
		r.policy.MaxWait = 20 * time.Second
	}
	if r.ns, err = scope.OpenNetns(r.server.NetNS); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.ns.Close() })
	r.nft("add table inet test")
	r.nft("add chain inet test before { type filter hook prerouting priority -310; }")
	r.nft(fmt.Sprintf("add rule inet test before tcp dport %d %s meta mark set meta mark or %#x", testPort, mark, testMark))
	r.rule = netfilter.Rule{Netns: r.ns, Mark: testMark, Queue: testNFQ}
	if _, err := r.rule.Ensure(); err != nil {
		t.Fatal(err)
	}
	r.open()
	return r
}

func (r *rig) open() {
	r.t.Helper()
	h, err := OpenHolder(HolderOptions{
		Netns: r.ns, Queue: testNFQ, Mark: testMark, Gate: r.gate, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { h.Close() })
	h.SetTarget(testPort, 1, r.policy)
	r.holder = h
}

func (r *rig) nft(command string) {
	r.t.Helper()
	out, err := r.server.Command(context.Background(), "nft", command).CombinedOutput()
	if err != nil {
		r.t.Fatalf("nft %s: %v: %s", command, err, out)
	}
}

// path is a way to the server.
type path struct {
	listen string
	host   func(*rig) *lab.Host
	dial   func(*rig) string
}

func remote(r *rig) *lab.Host { return r.client }
func local(r *rig) *lab.Host  { return r.server }

func port(a string) string { return net.JoinHostPort(a, fmt.Sprint(testPort)) }

var paths = map[string]path{
	"IPv4":            {"tcp4", remote, func(r *rig) string { return port(r.server.Addr4.String()) }},
	"IPv6":            {"tcp6", remote, func(r *rig) string { return port(r.server.Addr6.String()) }},
	"IPv4 dual stack": {"tcp", remote, func(r *rig) string { return port(r.server.Addr4.String()) }},
	"IPv4 loopback":   {"tcp4", local, func(r *rig) string { return port("127.0.0.1") }},
	"IPv6 loopback":   {"tcp6", local, func(r *rig) string { return port("::1") }},
}

// listen accepts what comes and notes when.
func (r *rig) listen(network string, serve func(net.Conn)) (accepted func() []time.Time) {
	r.t.Helper()
	ln, err := r.server.Listen(network, fmt.Sprint(":", testPort))
	if err != nil {
		r.t.Fatal(err)
	}
	var mu sync.Mutex
	var times []time.Time
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			times = append(times, time.Now())
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				if serve != nil {
					serve(c)
				} else {
					_, _ = io.Copy(io.Discard, c)
				}
			})
		}
	})
	r.t.Cleanup(func() { ln.Close(); wg.Wait() })
	return func() []time.Time {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(times)
	}
}

// dialed is how one connect ended.
type dialed struct {
	conn net.Conn
	err  error
	took time.Duration
}

// dial connects n times at once; wait returns when all are done.
func (r *rig) dial(p path, n int, timeout time.Duration) (wait func() []dialed) {
	results := make([]dialed, n)
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	for i := range results {
		wg.Go(func() {
			begin := time.Now()
			c, err := p.host(r).Dial(ctx, "tcp", p.dial(r))
			results[i] = dialed{c, err, time.Since(begin)}
		})
	}
	r.t.Cleanup(func() {
		cancel()
		wg.Wait()
		for _, d := range results {
			if d.conn != nil {
				d.conn.Close()
			}
		}
	})
	return func() []dialed {
		wg.Wait()
		return results
	}
}

func (r *rig) await(what string, cond func() bool) {
	r.t.Helper()
	patience := lab.Allow(3 * time.Second)
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w, in := r.gate.count()
			r.t.Fatalf("%s: not after %v; %d wait, %d inside, %+v", what, patience, w, in, r.holder.TargetStats(1).QueueCounts)
		}
	}
}

func (r *rig) awaitWaiting(n int) {
	r.t.Helper()
	r.await(fmt.Sprint(n, " wait"), func() bool { w, _ := r.gate.count(); return w == n })
}

// flood sends SYNs of other clients, about 20000 a second.
func (r *rig) flood(n int) error {
	var fd int
	err := r.client.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for i := range n {
		b := ip4(0, 0x4000, segment(tcpSYN, 0))
		b[8] = 64
		copy(b[12:], r.client.Addr4.AsSlice())
		copy(b[16:], r.server.Addr4.AsSlice())
		tcp := b[20:]
		binary.BigEndian.PutUint16(tcp, uint16(1024+i%60000))
		binary.BigEndian.PutUint16(tcp[16:], ^uint16(onesSum(onesSum(unix.IPPROTO_TCP+24, b[12:20]), tcp)))
		if err := unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: r.server.Addr4.As4()}); err != nil {
			return err
		}
		if i%10 == 0 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	return nil
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

// connect makes a connection whose SYN is not held.
func (r *rig) connect(p path) net.Conn {
	r.t.Helper()
	d := r.dial(p, 1, 5*time.Second)()[0]
	if d.err != nil {
		r.t.Fatal(d.err)
	}
	_ = d.conn.SetDeadline(time.Now().Add(10 * time.Second))
	return d.conn
}
