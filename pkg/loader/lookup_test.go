package loader

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// What these tests protect. No such namespace exists: the program is run, not
// attached.
const (
	testNetns = 1<<40 + 7
	testPort  = 8080
)

// doorman runs the admission program for one target.
type doorman struct {
	t    testing.TB
	gate *Gate
	prog *ebpf.Program
	id   uint32
	tick uint32
}

func newDoorman(t testing.TB) *doorman {
	t.Helper()
	return doormanOf(t, openForTest(t))
}

func doormanOf(t testing.TB, g *Gate) *doorman {
	t.Helper()
	return &doorman{t: t, gate: g, prog: lookupIn(t, g, testNetns)}
}

func lookupIn(t testing.TB, g *Gate, netns uint64) *ebpf.Program {
	t.Helper()
	if err := g.lead(); err != nil {
		t.Fatal(err)
	}
	p, err := g.load(headgateProgHeadgateLookup, func(spec *ebpf.CollectionSpec) error {
		return spec.Variables["this_netns"].Set(netns)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// order puts an order in force, in a new tick and with a lease of a minute.
func (d *doorman) order(o Order) {
	d.t.Helper()
	d.orderUntil(o, monotonic(d.t)+time.Minute)
}

func (d *doorman) orderUntil(o Order, lease time.Duration) {
	d.t.Helper()
	d.tick++
	o.Tick = d.tick
	id, err := d.gate.Target(TargetKey{Netns: testNetns, Port: testPort}, o, lease)
	if err != nil {
		d.t.Fatal(err)
	}
	d.id = id
}

func enforce(limit int) Order {
	return Order{Enforce: true, Limit: limit, AfterRefusal: limit}
}

func (d *doorman) reading() Reading {
	d.t.Helper()
	return mustRead(d.t, d.gate, d.id)
}

// want compares the counts that say where arrivals went.
func (d *doorman) want(what string, want Reading) {
	d.t.Helper()
	r := d.reading()
	got := Reading{InFlight: r.InFlight, Pending: r.Pending, Rejected: r.Rejected,
		WouldReject: r.WouldReject, PendingFull: r.PendingFull, Expired: r.Expired}
	if got != want {
		d.t.Errorf("%s:\ngot  %+v\nwant %+v", what, got, want)
	}
}

// syn is a first packet, as the admission program sees it.
type syn struct {
	protocol uint32
	from, to netip.AddrPort
}

// synFrom is a TCP SYN to the protected port.
func synFrom(from string) syn {
	s := syn{protocol: unix.IPPROTO_TCP, from: netip.MustParseAddrPort(from)}
	to := netip.MustParseAddr("192.0.2.80")
	if s.from.Addr().Is4In6() {
		to = netip.AddrFrom16(to.As16())
	} else if s.from.Addr().Is6() {
		to = netip.MustParseAddr("2001:db8::80")
	}
	s.to = netip.AddrPortFrom(to, testPort)
	return s
}

// context is the syn as a struct bpf_sk_lookup of linux/bpf.h.
func (s syn) context() []byte {
	family := uint32(unix.AF_INET6)
	if s.from.Addr().Is4() {
		family = unix.AF_INET
	}
	var b bytes.Buffer
	addresses := func(a netip.Addr) {
		var four [4]byte
		var six [16]byte
		if a.Is4() {
			four = a.As4()
		} else {
			six = a.As16()
		}
		b.Write(four[:])
		b.Write(six[:])
	}
	_ = binary.Write(&b, binary.NativeEndian, []uint32{0, 0, family, s.protocol}) // first a socket: none
	addresses(s.from.Addr())
	_ = binary.Write(&b, binary.BigEndian, []uint16{s.from.Port(), 0})
	addresses(s.to.Addr())
	_ = binary.Write(&b, binary.NativeEndian, uint32(s.to.Port()))
	return b.Bytes()
}

// passes runs the program and says whether it lets the SYN pass.
func passes(t testing.TB, p *ebpf.Program, s syn) bool {
	t.Helper()
	verdict, err := p.Run(&ebpf.RunOptions{Context: s.context()})
	if err != nil {
		t.Fatal(err)
	}
	const drop, pass = 0, 1
	if verdict != drop && verdict != pass {
		t.Fatalf("the program returns %d", verdict)
	}
	return verdict == pass
}

func (d *doorman) admits(from string) bool {
	d.t.Helper()
	return passes(d.t, d.prog, synFrom(from))
}

// must runs SYNs from some ports of an address, all of which are to have the
// same verdict.
func (d *doorman) must(admit bool, ip string, ports ...uint16) {
	d.t.Helper()
	for _, port := range ports {
		from := netip.AddrPortFrom(netip.MustParseAddr(ip), port).String()
		if d.admits(from) != admit {
			d.t.Errorf("SYN from %s: admitted %v, want %v", from, !admit, admit)
		}
	}
}

func TestLookupCountsTheTargetOnly(t *testing.T) {
	d := newDoorman(t)
	d.order(enforce(0))
	udp := synFrom("198.51.100.1:1000")
	udp.protocol = unix.IPPROTO_UDP
	otherPort := synFrom("198.51.100.1:1000")
	otherPort.to = netip.AddrPortFrom(otherPort.to.Addr(), testPort+1)
	samePortFrom := synFrom("198.51.100.1:8080")
	samePortFrom.to = otherPort.to
	for name, s := range map[string]syn{
		"UDP": udp, "another port": otherPort, "from the protected port": samePortFrom,
	} {
		if !passes(t, d.prog, s) {
			t.Errorf("%s: refused", name)
		}
	}
	elsewhere := lookupIn(t, d.gate, testNetns+1)
	if !passes(t, elsewhere, synFrom("198.51.100.1:1000")) {
		t.Error("the same port in another namespace: refused")
	}
	d.want("nothing of the target's", Reading{})

	d.must(false, "198.51.100.1", 1000)
	d.want("the target", Reading{Rejected: 1})
}

func TestLookupLimit(t *testing.T) {
	for name, ips := range map[string][]string{
		"IPv4":        {"198.51.100.1"},
		"IPv6":        {"2001:db8::1"},
		"v4-mapped":   {"::ffff:198.51.100.1"},
		"one for all": {"198.51.100.1", "2001:db8::1", "::ffff:198.51.100.2"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoorman(t)
			d.order(enforce(3))
			for i := range 3 {
				d.must(true, ips[i%len(ips)], uint16(1000+i))
			}
			for i := range 2 {
				d.must(false, ips[i%len(ips)], uint16(2000+i))
			}
			d.want("at the limit", Reading{InFlight: 3, Pending: 3, Rejected: 2})
			d.order(enforce(4))
			d.must(true, ips[0], 2000)
			d.must(false, ips[0], 2001)
			d.want("a higher limit", Reading{InFlight: 4, Pending: 4, Rejected: 3})
			d.order(enforce(2))
			d.must(false, ips[0], 3000)
			d.want("a lower one takes nothing back", Reading{InFlight: 4, Pending: 4, Rejected: 4})
		})
	}
}

// The connection's later hooks see the client of a dual-stack listener as a
// v4-mapped one: both must find the same reservation.
func TestLookupKnowsAV4MappedClient(t *testing.T) {
	d := newDoorman(t)
	d.order(enforce(5))
	d.must(true, "198.51.100.1", 1000)
	d.must(true, "::ffff:198.51.100.1", 1000)
	d.want("one client", Reading{InFlight: 1, Pending: 1})

	var key headgatePendingKey
	var value headgatePending
	it := d.gate.maps[headgateMapPendings].Iterate()
	if !it.Next(&key, &value) {
		t.Fatalf("no reservation: %v", it.Err())
	}
	mapped := func(words [4]uint32) netip.Addr {
		var b [16]byte
		for i, w := range words {
			binary.NativeEndian.PutUint32(b[4*i:], w)
		}
		return netip.AddrFrom16(b)
	}
	if got := mapped(key.Remote).String(); got != "::ffff:198.51.100.1" {
		t.Errorf("reserved for %s", got)
	}
	if got := mapped(key.Local).String(); got != "::ffff:192.0.2.80" {
		t.Errorf("reserved at %s", got)
	}
	if key.Target != d.id || key.LocalPort != testPort || key.RemotePort != be16(1000) {
		t.Errorf("reserved under %+v", key)
	}
	if left := time.Duration(value.Expires) - monotonic(t); left <= 0 || left > 1500*time.Millisecond {
		t.Errorf("reserved for %v, want up to a second and a half", left)
	}
}

// be16 is how a native word looks that holds a port in network byte order.
func be16(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

func TestLookupRetransmission(t *testing.T) {
	d := newDoorman(t)
	d.order(enforce(2))
	d.must(true, "198.51.100.1", 1000, 1000)
	d.want("sent again with room to spare", Reading{InFlight: 1, Pending: 1})
	d.must(true, "2001:db8::1", 1000)
	d.must(true, "198.51.100.1", 1000)
	d.must(true, "2001:db8::1", 1000)
	d.want("sent again at the limit", Reading{InFlight: 2, Pending: 2})
	d.must(false, "198.51.100.1", 1001)
	d.must(false, "198.51.100.2", 1000)
	d.must(false, "2001:db8::1", 1001)
	d.want("others", Reading{InFlight: 2, Pending: 2, Rejected: 3})
	d.order(enforce(3))
	d.must(true, "198.51.100.2", 1000)
	d.want("a refused one is judged again", Reading{InFlight: 3, Pending: 3, Rejected: 3})
}

func TestLookupObserves(t *testing.T) {
	d := newDoorman(t)
	d.order(Order{Limit: 1, AfterRefusal: 1})
	d.must(true, "198.51.100.1", 1, 2, 3)
	d.want("observing", Reading{InFlight: 3, Pending: 3, WouldReject: 2})
}

func TestLookupOpensWithoutALease(t *testing.T) {
	d := newDoorman(t)
	// The programs' clock is coarse: it may be a jiffy behind.
	d.orderUntil(enforce(1), monotonic(t)-20*time.Millisecond)
	d.must(true, "198.51.100.1", 1, 2, 3)
	d.want("no lease", Reading{InFlight: 3, Pending: 3, WouldReject: 2})
	d.order(enforce(1))
	d.must(false, "198.51.100.1", 4)
	d.want("renewed", Reading{InFlight: 3, Pending: 3, WouldReject: 2, Rejected: 1})

	d.orderUntil(enforce(1), monotonic(t)+100*time.Millisecond)
	d.must(false, "198.51.100.1", 4)
	time.Sleep(150 * time.Millisecond)
	d.must(true, "198.51.100.1", 4)
	d.want("run out", Reading{InFlight: 4, Pending: 4, WouldReject: 3, Rejected: 2})
}

func TestLookupLimitAfterARefusal(t *testing.T) {
	d := newDoorman(t)
	o := enforce(2)
	o.AfterRefusal = 4
	d.order(o)
	d.must(true, "198.51.100.1", 1, 2)
	d.must(false, "198.51.100.1", 3)
	if r := d.reading(); r.RefusedIn != d.tick {
		t.Errorf("refused in tick %d, want %d", r.RefusedIn, d.tick)
	}
	d.must(true, "198.51.100.1", 4, 5)
	d.must(false, "198.51.100.1", 6)
	refused := d.tick
	d.order(o)
	if r := d.reading(); r.RefusedIn != refused || r.Peak != 4 || r.PeakTick != refused {
		t.Errorf("after the tick: refused in %d, peak %d in %d; want %d, 4, %[1]d", r.RefusedIn, r.Peak, r.PeakTick, refused)
	}
	d.order(enforce(5))
	d.must(true, "198.51.100.1", 6)
	if r := d.reading(); r.Peak != 5 || r.PeakTick != d.tick {
		t.Errorf("peak %d in %d, want 5 in %d", r.Peak, r.PeakTick, d.tick)
	}
}

// expire lets so many reservations be past their time.
func (d *doorman) expire(n int) { d.date(n, headgatePending{Since: 1, Expires: 1}) }

// keep does what the kernel does when it has answered the SYNs: the reservations
// last, here for as long as any machine takes for a test.
func (d *doorman) keep() {
	in := uint64(monotonic(d.t) + time.Minute)
	d.date(math.MaxInt, headgatePending{Since: in, Expires: in})
}

// date gives so many reservations, or all that there are, the times of another.
func (d *doorman) date(n int, times headgatePending) {
	d.t.Helper()
	m := d.gate.maps[headgateMapPendings]
	var keys []headgatePendingKey
	var key headgatePendingKey
	var value headgatePending
	it := m.Iterate()
	for it.Next(&key, &value) {
		keys = append(keys, key)
	}
	if it.Err() != nil || len(keys) == 0 {
		d.t.Fatalf("%d reservations, %v", len(keys), it.Err())
	}
	for _, key := range keys[:min(n, len(keys))] {
		if err := m.Lookup(key, &value); err != nil {
			d.t.Fatal(err)
		}
		value.Since, value.Expires = times.Since, times.Expires
		if err := m.Update(key, value, ebpf.UpdateExist); err != nil {
			d.t.Fatal(err)
		}
	}
}

func TestExpiredReservations(t *testing.T) {
	t.Run("a full port takes their slots", func(t *testing.T) {
		d := newDoorman(t)
		d.order(enforce(5))
		d.must(true, "198.51.100.1", 1, 2, 3, 4, 5)
		d.expire(2)
		d.must(true, "198.51.100.1", 6)
		d.want("one of two slots is used again", Reading{InFlight: 4, Pending: 4, Expired: 2})
	})
	t.Run("the agent frees those of an idle port", func(t *testing.T) {
		d := newDoorman(t)
		d.order(enforce(5))
		d.must(true, "198.51.100.1", 1, 2)
		if err := d.gate.Sweep(); err != nil {
			t.Fatal(err)
		}
		d.want("too early", Reading{InFlight: 2, Pending: 2})
		d.expire(2)
		time.Sleep(120 * time.Millisecond) // more often it does not look
		if err := d.gate.Sweep(); err != nil {
			t.Fatal(err)
		}
		d.want("in time", Reading{Expired: 2})
	})
}

func TestNoRoomForAReservation(t *testing.T) {
	d := newDoorman(t)
	d.order(enforce(5))
	m := d.gate.maps[headgateMapPendings]
	keys := make([]headgatePendingKey, m.MaxEntries())
	values := make([]headgatePending, len(keys))
	for i := range keys {
		keys[i] = headgatePendingKey{Remote: [4]uint32{uint32(i)}, Target: 63}
		values[i].Since = uint64(monotonic(t) + time.Minute)
		values[i].Expires = values[i].Since
	}
	if _, err := m.BatchUpdate(keys, values, nil); err != nil {
		t.Fatal(err)
	}
	d.must(true, "198.51.100.1", 1, 2, 3)
	d.want("let in without, and from now on none is tried", Reading{PendingFull: 1})
	if err := m.Delete(keys[0]); err != nil {
		t.Fatal(err)
	}
	d.must(true, "198.51.100.1", 4)
	d.want("flood mode goes on", Reading{PendingFull: 1})
	d.calm()
	d.must(true, "198.51.100.1", 5)
	d.want("room again", Reading{InFlight: 1, Pending: 1, PendingFull: 1})
}

// Check and count are one step: as many SYNs at once as there can be leave no
// slot unused and none used twice.
func TestLookupAtOnce(t *testing.T) {
	const limit, threads, each = 100, 8, 100
	d := newDoorman(t)
	d.order(enforce(limit))
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			for port := range each {
				s := synFrom(fmt.Sprintf("198.51.100.%d:%d", i+1, port+1))
				verdict, err := d.prog.Run(&ebpf.RunOptions{Context: s.context()})
				if err != nil {
					t.Error(err)
					return
				}
				admitted.Add(int64(verdict))
			}
		})
	}
	wg.Wait()
	if n := admitted.Load(); n != limit {
		t.Errorf("%d of %d admitted, want %d", n, threads*each, limit)
	}
	d.want("all came", Reading{InFlight: limit, Pending: limit, Rejected: threads*each - limit})
	if r := d.reading(); r.Peak != limit {
		t.Errorf("peak %d, want %d", r.Peak, limit)
	}
}

// No update of the count is lost between CPUs: clients that send the same SYN
// again and again take a slot and give it back each time.
func TestLookupLosesNoUpdate(t *testing.T) {
	const threads, times = 4, 500_000
	d := newDoorman(t)
	d.order(enforce(threads))
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			s := synFrom(fmt.Sprintf("198.51.100.%d:1", i+1))
			if _, err := d.prog.Run(&ebpf.RunOptions{Context: s.context(), Repeat: times}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r := d.reading()
	if r.InFlight != threads-int(r.Expired) || r.Pending != r.InFlight {
		t.Errorf("%d clients: %+v", threads, r)
	}
}
