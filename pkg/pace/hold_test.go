package pace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/netfilter"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

func gaps(times []time.Time) (mean, sd time.Duration) {
	var sum, squares float64
	for i := 1; i < len(times); i++ {
		d := float64(times[i].Sub(times[i-1]))
		sum += d
		squares += d * d
	}
	n := float64(len(times) - 1)
	return time.Duration(sum / n), time.Duration(math.Sqrt(max(squares/n-sum*sum/n/n, 0)))
}

func TestBurstIsPaced(t *testing.T) {
	const n, rate = 40, 20.0
	gate := newFakeGate(1000)
	gate.interval = Interval(rate)
	r := newRig(t, markSYNs, gate, Policy{})
	accepted := r.listen("tcp4", nil)
	for i, d := range r.dial(paths["IPv4"], n, 20*time.Second)() {
		if d.err != nil {
			t.Fatalf("client %d: %v", i, d.err)
		}
	}
	r.await("all accepted", func() bool { return len(accepted()) == n })
	mean, sd := gaps(accepted())
	s := r.holder.TargetStats(1)
	t.Logf("%d at %v/s: mean gap %v, sd %v; late p50 %v p99 %v", n, rate, mean, sd, s.Late.Quantile(.5), s.Late.Quantile(.99))
	if want := time.Duration(1e9 / rate); (mean - want).Abs() > lab.Allow(want/50) {
		t.Errorf("mean gap %v", mean)
	}
	if sd > time.Duration(1e9/rate)/2 { // random arrivals would have 1
		t.Errorf("gaps differ by %v", sd)
	}
	if s.Held != n || s.Released != n || s.Waiting != 0 {
		t.Errorf("%+v, %d wait", s.QueueCounts, s.Waiting)
	}
}

// As many as there are slots come in, over every path; each end lets in the
// next, in the order of their arrival.
func TestFreeSlotLetsTheNextIn(t *testing.T) {
	for name, p := range paths {
		t.Run(name, func(t *testing.T) {
			const n, limit = 30, 3
			r := newRig(t, markSYNs, newFakeGate(limit), Policy{})
			accepted := r.listen(p.listen, nil)
			wait := r.dial(p, n, 10*time.Second)
			r.awaitWaiting(n - limit)
			for in := limit; in <= n; in++ {
				r.await("let in", func() bool { return len(accepted()) == in })
				if w, inside := r.gate.count(); w != n-in || inside != limit {
					t.Fatalf("%d inside, %d wait", inside, w)
				}
				if in < n {
					r.gate.finish(in - limit)
					r.holder.Wake(1, monotonic())
				}
			}
			for _, d := range wait() {
				if d.err != nil {
					t.Error(d.err)
				}
			}
			s := r.holder.Stats()
			t.Logf("hand-over p50 %v p99 %v of %d", s.HandOver.Quantile(.5), s.HandOver.Quantile(.99), s.HandOver.Count)
			if s.HandOver.Count != n-limit || s.Errors != 0 || s.Lost != 0 {
				t.Errorf("%d handed over, %d errors, %d lost", s.HandOver.Count, s.Errors, s.Lost)
			}
		})
	}
}

func TestConnectIsRefusedWhenItsTimeIsOver(t *testing.T) {
	for name, p := range paths {
		t.Run(name, func(t *testing.T) {
			const n, maxWait = 10, 50 * time.Millisecond
			r := newRig(t, markSYNs, newFakeGate(0), Policy{MaxWait: maxWait, Reset: true})
			accepted := r.listen(p.listen, nil)
			var last time.Duration
			for _, d := range r.dial(p, n, 5*time.Second)() {
				last = max(last, d.took)
				if !errors.Is(d.err, unix.ECONNREFUSED) || d.took < maxWait || d.took > maxWait+allowance {
					t.Errorf("%v after %v", d.err, d.took)
				}
			}
			r.await("given up", func() bool { return r.gate.calls(&r.gate.gaveUp) == n })
			s := r.holder.TargetStats(1)
			t.Logf("the last after %v", last)
			if s.TimedOut != n || len(accepted()) != 0 {
				t.Errorf("%+v, %d accepted", s.QueueCounts, len(accepted()))
			}
		})
	}
}

// Where nothing may be said, the client tries again, and gets in when it can.
func TestConnectIsDroppedWhenItsTimeIsOver(t *testing.T) {
	r := newRig(t, markSYNs, newFakeGate(0), Policy{MaxWait: 50 * time.Millisecond})
	r.listen("tcp4", nil)
	wait := r.dial(paths["IPv4"], 1, 5*time.Second)
	r.await("time over", func() bool { return r.holder.TargetStats(1).TimedOut == 1 })
	r.gate.setLimit(1)
	if d := wait()[0]; d.err != nil || d.took < 900*time.Millisecond || d.took > time.Second+allowance {
		t.Errorf("%v after %v", d.err, d.took)
	}
}

func TestWithoutAHolderAllPass(t *testing.T) {
	r := newRig(t, markSYNs, newFakeGate(0), Policy{})
	r.listen("tcp4", nil)
	if err := r.holder.Close(); err != nil {
		t.Error(err)
	}
	for _, d := range r.dial(paths["IPv4"], 5, 5*time.Second)() {
		if d.err != nil || d.took > allowance {
			t.Errorf("%v after %v", d.err, d.took)
		}
	}
}

func TestCloseLetsAllGo(t *testing.T) {
	r := newRig(t, markSYNs, newFakeGate(0), Policy{})
	r.listen("tcp4", nil)
	wait := r.dial(paths["IPv4"], 20, 5*time.Second)
	r.awaitWaiting(20)
	if err := r.holder.Close(); err != nil {
		t.Error(err)
	}
	for _, d := range wait() {
		if d.err != nil || d.took > allowance {
			t.Errorf("%v after %v", d.err, d.took)
		}
	}
	if n := r.gate.calls(&r.gate.gaveUp); n != 20 {
		t.Errorf("%d given up", n)
	}
}

// A process that is killed leaves its socket to the kernel, which drops what
// is held; clients come again, and pass since nobody holds them.
func TestKilledHolder(t *testing.T) {
	r := newRig(t, markSYNs, newFakeGate(0), Policy{})
	r.listen("tcp4", nil)
	wait := r.dial(paths["IPv4"], 20, 5*time.Second)
	r.awaitWaiting(20)
	r.holder.nfq.Con.Close()
	for _, d := range wait() {
		if d.err != nil || d.took > time.Second+allowance {
			t.Errorf("%v after %v", d.err, d.took)
		}
	}
}

// A successor finds the rule full of packets, and holds what comes again.
func TestHolderThatComesBack(t *testing.T) {
	r := newRig(t, markSYNs, newFakeGate(0), Policy{})
	r.listen("tcp4", nil)
	wait := r.dial(paths["IPv4"], 20, 10*time.Second)
	r.awaitWaiting(20)
	r.holder.nfq.Con.Close()
	r.open()
	r.await("held again", func() bool { return r.holder.TargetStats(1).Waiting == 20 })
	r.gate.setLimit(20)
	r.holder.Wake(1, 0)
	for _, d := range wait() {
		if d.err != nil || d.took < 900*time.Millisecond || d.took > 1100*time.Millisecond+allowance {
			t.Errorf("%v after %v", d.err, d.took)
		}
	}
}

// Whoever takes a hook out of the packet filter has the kernel drop all held
// packets of the namespace without a word.
func TestForeignHookIsRemoved(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("seen again before the slot %t", again), func(t *testing.T) {
			const n = 20
			r := newRig(t, markSYNs, newFakeGate(0), Policy{})
			r.listen("tcp4", nil)
			r.nft("add table inet foreign")
			r.nft("add chain inet foreign in { type filter hook input priority 0; }")
			wait := r.dial(paths["IPv4"], n, 10*time.Second)
			r.awaitWaiting(n)
			if q, err := netfilter.Queues(r.ns); err != nil || q[testNFQ].Held != n {
				t.Fatalf("%v, %v", q, err)
			}
			r.nft("delete table inet foreign")
			if q, err := netfilter.Queues(r.ns); err != nil || q[testNFQ].Held != 0 {
				t.Fatalf("the kernel has learnt to keep them: %v, %v", q, err)
			}
			if again {
				r.await("come again", func() bool { return r.holder.TargetStats(1).Replaced == n })
			}
			r.gate.setLimit(n)
			r.holder.Wake(1, 0)
			for _, d := range wait() {
				if d.err != nil || d.took > 1100*time.Millisecond+allowance {
					t.Errorf("%v after %v", d.err, d.took)
				}
			}
			if _, inside := r.gate.count(); inside != n {
				t.Errorf("%d inside", inside)
			}
			r.await("lost packets counted", func() bool { return r.holder.Stats().Lost == n })
		})
	}
}

// What is not read in time the kernel drops, and the holder says how much that was.
func TestPacketsThatAreNotRead(t *testing.T) {
	gate := newFakeGate(0)
	gate.forgets = true
	r := newRig(t, markSYNs, gate, Policy{})
	flood := func(n int) {
		t.Helper()
		if err := r.flood(n); err != nil {
			t.Fatal(err)
		}
	}
	kernel := func() netfilter.Queue {
		t.Helper()
		q, err := netfilter.Queues(r.ns)
		if err != nil {
			t.Fatal(err)
		}
		return q[testNFQ]
	}
	flood(10)
	r.await("they are read", func() bool { return r.holder.Stats().Packets == 10 })
	if err := r.holder.nfq.Con.SetReadBuffer(32 << 10); err != nil {
		t.Fatal(err)
	}
	r.holder.mu.Lock() // as one that does not get to run
	flood(1000)
	r.await("all that was not read is dropped", func() bool { return kernel().Missed > 500 })
	r.holder.mu.Unlock()
	r.await("what is left is read", func() bool { return kernel().Held == 0 })
	flood(1)
	r.await("the next shows what was missed", func() bool {
		s := r.holder.Stats()
		return s.Missed == kernel().Missed && s.Packets+s.Missed == 1011
	})
}

func TestRuleIsNotRebuiltWhileAnythingIsHeld(t *testing.T) {
	r := newRig(t, markSYNs, newFakeGate(0), Policy{})
	r.listen("tcp4", nil)
	wait := r.dial(paths["IPv4"], 1, 10*time.Second)
	r.awaitWaiting(1)
	r.nft("flush chain inet headgate hold")
	if made, err := r.rule.Ensure(); !made || err != nil {
		t.Errorf("the rule alone: %t, %v", made, err)
	}
	// Another chain of our name whose hook is elsewhere, with the old hook in
	// use: nothing but to unregister it would help.
	r.nft("rename chain inet headgate hold old")
	r.nft("add chain inet headgate hold { type filter hook input priority 0; }")
	if made, err := r.rule.Ensure(); made || !errors.Is(err, netfilter.ErrHeld) {
		t.Errorf("the hook: %t, %v", made, err)
	}
	if q, _ := netfilter.Queues(r.ns); q[testNFQ].Held != 1 {
		t.Errorf("lost: %v", q)
	}
	r.gate.setLimit(1)
	r.holder.Wake(1, 0)
	if d := wait()[0]; d.err != nil || d.took > allowance {
		t.Errorf("%v after %v", d.err, d.took)
	}
	if made, err := r.rule.Ensure(); !made || err != nil {
		t.Errorf("the hook, later: %t, %v", made, err)
	}
}

func TestOpenWhilePacketsCome(t *testing.T) {
	r := newRig(t, markSYNs, newFakeGate(0), Policy{})
	if err := r.holder.Close(); err != nil {
		t.Error(err)
	}
	flooded := make(chan error, 1)
	go func() { flooded <- r.flood(4000) }()
	for opened := 0; ; opened++ {
		select {
		case err := <-flooded:
			if err != nil || opened < 10 {
				t.Errorf("%v, opened %d times", err, opened)
			}
			return
		default:
		}
		r.open()
		if err := r.holder.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestQueueHasOneReader(t *testing.T) {
	r := newRig(t, markSYNs, newFakeGate(0), Policy{})
	_, err := OpenHolder(HolderOptions{Netns: r.ns, Queue: testNFQ, Mark: testMark, Gate: r.gate})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("netfilter queue %d: another program reads from it", testNFQ)) {
		t.Errorf("a second reader: %v", err)
	}
}

// A request of many packets that is held arrives whole and in order.
func TestRequestIsHeldAndGoesOn(t *testing.T) {
	for name, p := range paths {
		for _, size := range []int{200, 300_000} {
			t.Run(fmt.Sprint(name, " ", size), func(t *testing.T) {
				r := newRig(t, markPayloads, newFakeGate(0), Policy{})
				r.listen(p.listen, echo)
				c := r.connect(p)
				data := bytes.Repeat([]byte("0123456789abcdef!"), size/17+1)[:size]
				got := make([]byte, size)
				sent := make(chan error, 1)
				go func() { _, err := c.Write(data); sent <- err }()
				r.awaitWaiting(1)
				time.Sleep(30 * time.Millisecond) // until the rest is here
				r.gate.setLimit(1)
				begin := time.Now()
				r.holder.Wake(1, monotonic())
				if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, data) {
					t.Fatalf("%v, equal %t", err, bytes.Equal(got, data))
				}
				took := time.Since(begin)
				if err := <-sent; err != nil {
					t.Error(err)
				}
				// Once, and once for each packet that came when it was let in.
				r.await("delivered", func() bool {
					return r.gate.calls(&r.gate.said) == 1+int(r.holder.Stats().Passed)
				})
				s := r.holder.TargetStats(1)
				t.Logf("%v after its slot; %+v, %+v", took, s.QueueCounts, r.holder.Stats().Packets)
				if s.Held != 1 || s.Released != 1 {
					t.Errorf("%+v", s.QueueCounts)
				}
			})
		}
	}
}

func TestRequestIsResetWhenItsTimeIsOver(t *testing.T) {
	for name, p := range paths {
		t.Run(name, func(t *testing.T) {
			const maxWait = 50 * time.Millisecond
			r := newRig(t, markPayloads, newFakeGate(0), Policy{MaxWait: maxWait, Reset: true})
			ended := make(chan error, 1)
			r.listen(p.listen, func(c net.Conn) {
				n, err := c.Read(make([]byte, 1000))
				if n > 0 {
					err = errors.New("it got the request")
				}
				ended <- err
			})
			c := r.connect(p)
			begin := time.Now()
			if _, err := c.Write(make([]byte, 200)); err != nil {
				t.Fatal(err)
			}
			_, err := c.Read(make([]byte, 1))
			if took := time.Since(begin); !errors.Is(err, unix.ECONNRESET) || took < maxWait || took > maxWait+allowance {
				t.Errorf("client: %v after %v", err, took)
			}
			if err := <-ended; !errors.Is(err, unix.ECONNABORTED) {
				t.Errorf("server: %v", err)
			}
			r.await("given up", func() bool { return r.gate.calls(&r.gate.gaveUp) == 1 })
			if n := r.holder.Stats().Errors; n != 0 {
				t.Errorf("%d errors", n)
			}
		})
	}
}

// Connections that ask again and again: as many are inside as may be, and all
// of the time.
func TestRequestsOneAfterTheOther(t *testing.T) {
	const conns, limit, service, period = 40, 5, 10 * time.Millisecond, time.Second
	gate := newFakeGate(limit)
	r := newRig(t, markPayloads, gate, Policy{})
	var inside, most, served atomic.Int64
	r.listen("tcp4", func(c net.Conn) {
		f := Flow{
			Target: 1,
			Client: c.RemoteAddr().(*net.TCPAddr).AddrPort(), Server: c.LocalAddr().(*net.TCPAddr).AddrPort(),
		}
		b := make([]byte, 200)
		for {
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			n := inside.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(service)
			inside.Add(-1)
			served.Add(1)
			gate.finishFlow(f)
			r.holder.Wake(1, monotonic())
			if _, err := c.Write(b[:1]); err != nil {
				return
			}
		}
	})
	var wg sync.WaitGroup
	all := make([]net.Conn, conns)
	for i := range all {
		all[i] = r.connect(paths["IPv4"])
	}
	end := time.Now().Add(period)
	for _, c := range all {
		wg.Go(func() {
			for b := make([]byte, 200); time.Now().Before(end); {
				_, err := c.Write(b)
				if _, err2 := io.ReadFull(c, b[:1]); err != nil || err2 != nil {
					t.Error(err, err2)
					return
				}
			}
		})
	}
	wg.Wait()
	s, ts := r.holder.Stats(), r.holder.TargetStats(1)
	t.Logf("%d served, waits p50 %v p99 %v, hand-over p50 %v p99 %v, %+v", served.Load(),
		ts.Waits.Quantile(.5), ts.Waits.Quantile(.99), s.HandOver.Quantile(.5), s.HandOver.Quantile(.99), ts.QueueCounts)
	if most.Load() != limit {
		t.Errorf("%d inside", most.Load())
	}
	if ideal := int64(limit * (period + conns/limit*service) / service); served.Load() < ideal/2 {
		t.Errorf("%d served, of %d", served.Load(), ideal)
	}
	if waiting, in := gate.count(); waiting != 0 || in != 0 || ts.Held != uint64(served.Load()) {
		t.Errorf("%d wait, %d inside, %d held", waiting, in, ts.Held)
	}
}

// The mark does not go further than the queue.
func TestMarkIsCleared(t *testing.T) {
	r := newRig(t, markSYNs, newFakeGate(1), Policy{})
	r.nft("add chain inet test after { type filter hook prerouting priority -290; }")
	r.nft("add rule inet test before tcp dport 8080 meta mark set meta mark or 0x5")
	r.nft("add rule inet test after tcp flags & (syn|ack) == syn meta mark 0x5 counter")
	r.listen("tcp4", nil)
	r.connect(paths["IPv4"])
	out, err := r.server.Command(context.Background(), "nft", "list chain inet test after").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "counter packets 1 ") {
		t.Errorf("%v: %s", err, out)
	}
}

// A SYN that nobody waits for any more, as after the agent was stopped for a
// while, does not slip in: its client sends another, which has its turn.
func TestStaleSYNIsDropped(t *testing.T) {
	gate := newFakeGate(1)
	gate.forgets = true
	r := newRig(t, markSYNs, gate, Policy{})
	accepted := r.listen("tcp4", nil)
	results := r.dial(paths["IPv4"], 1, 20*time.Second)
	r.await("the first is dropped", func() bool { return r.holder.Stats().Stale == 1 })
	if n := len(accepted()); n != 0 {
		t.Fatalf("%d came in", n)
	}
	gate.mu.Lock()
	gate.forgets = false
	gate.mu.Unlock()
	if d := results()[0]; d.err != nil || d.took < 900*time.Millisecond {
		t.Errorf("after %v: %v; want it in with its second SYN", d.took, d.err)
	}
}

// What is no flow of a target is let go, whatever it is.
func TestNotHeld(t *testing.T) {
	gate := newFakeGate(0)
	r := newRig(t, markSYNs, gate, Policy{})
	r.nft("add rule inet test before tcp dport 8081 meta mark set 0x10000000")
	r.nft("add rule inet test before meta l4proto udp meta mark set 0x10000000")
	ln, err := r.server.Listen("tcp4", ":8081")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := r.client.Dial(context.Background(), "tcp", netip.AddrPortFrom(r.server.Addr4, 8081).String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	u, err := r.client.Dial(context.Background(), "udp", netip.AddrPortFrom(r.server.Addr4, 9).String())
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if _, err := u.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("UDP: %v", err)
	}
	if s := r.holder.Stats(); s.Passed < 3 || s.Passed != s.Packets {
		t.Errorf("%d of %d passed", s.Passed, s.Packets)
	}
}
