package loader

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"headgate/pkg/source"
)

func prefixes(texts ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range texts {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

var testKey = TargetKey{Netns: testNetns, Port: testPort}

func (d *doorman) sources(p source.Policy) {
	d.t.Helper()
	if err := d.gate.SetSources(testKey, p); err != nil {
		d.t.Fatal(err)
	}
}

// let runs SYNs that are to be admitted, and whose reservations last.
func (d *doorman) let(ip string, ports ...uint16) {
	d.t.Helper()
	d.must(true, ip, ports...)
	d.keep()
}

// expireAll has every reservation end.
func (d *doorman) expireAll() {
	d.t.Helper()
	d.expire(math.MaxInt)
	time.Sleep(110 * time.Millisecond) // one sweep in that time
	if err := d.gate.Sweep(); err != nil {
		d.t.Fatal(err)
	}
	if r := d.reading(); r.InFlight != 0 || r.Pending != 0 {
		d.t.Errorf("%d in flight, %d pending when all is over", r.InFlight, r.Pending)
	}
	d.calm() // it looked like a flood
}

// counted is how many sources there are that the programs count units of.
func (d *doorman) counted() (n int) {
	d.t.Helper()
	var key, value uint64
	it := d.gate.maps[headgateMapSourceCounts].Iterate()
	for it.Next(&key, &value) {
		n++
	}
	if err := it.Err(); err != nil {
		d.t.Fatal(err)
	}
	return n
}

func TestExempt(t *testing.T) {
	d := newDoorman(t)
	d.sources(source.Policy{Exempt: prefixes("198.51.100.0/28", "2001:db8:1::/48")})
	d.order(enforce(0))
	d.must(true, "198.51.100.1", 1)
	d.must(true, "::ffff:198.51.100.15", 1)
	d.must(true, "2001:db8:1:2::3", 1)
	d.must(false, "198.51.100.16", 1)
	d.must(false, "::ffff:198.51.100.16", 1)
	d.must(false, "2001:db8:2::1", 1)
	d.want("exempt", Reading{Rejected: 3})

	// At run time, with what stays staying at every moment.
	if err := d.gate.SetExempt(testKey, prefixes("198.51.100.0/27")); err != nil {
		t.Fatal(err)
	}
	d.must(true, "198.51.100.1", 1)
	d.must(true, "198.51.100.16", 1)
	d.must(false, "2001:db8:1:2::3", 1)
	if err := d.gate.SetExempt(testKey, nil); err != nil {
		t.Fatal(err)
	}
	d.must(false, "198.51.100.1", 1)
	if n := len(d.gate.sources.prefixes[d.id]); n != 0 || d.gate.sources.count != 0 {
		t.Errorf("%d prefixes are left, %d counted", n, d.gate.sources.count)
	}
}

// All of IPv6 is not IPv4, though that is written as a part of it.
func TestExemptIPv6IsNoIPv4(t *testing.T) {
	d := newDoorman(t)
	d.sources(source.Policy{Exempt: prefixes("::/0")})
	d.order(enforce(0))
	d.must(true, "2001:db8::1", 1)
	d.must(false, "198.51.100.1", 1)
	d.must(false, "::ffff:198.51.100.1", 1)
	d.sources(source.Policy{Exempt: prefixes("0.0.0.0/0")})
	d.must(false, "2001:db8::1", 1)
	d.must(true, "198.51.100.1", 1)
	d.must(true, "::ffff:198.51.100.1", 1)
}

func TestPerSource(t *testing.T) {
	d := newDoorman(t)
	d.sources(source.Policy{
		Exempt: prefixes("198.51.100.9/32"), Limit: 2, Prefix4: 24, Prefix6: 64,
		Shared: []source.Range{{Prefix: netip.MustParsePrefix("100.64.0.0/10"), Limit: 3}},
	})
	d.order(enforce(20))
	d.let("198.51.100.1", 1)
	d.let("::ffff:198.51.100.2", 1)
	d.must(false, "198.51.100.3", 1, 2)
	d.must(true, "198.51.100.9", 1, 2, 3) // exempt, and in the same prefix
	d.let("198.51.101.1", 1, 2)
	d.must(false, "198.51.101.1", 3)
	d.let("2001:db8::1", 1)
	d.let("2001:db8::ffff:0:0:1", 1)
	d.must(false, "2001:db8::2", 1)
	d.let("2001:db8:0:1::1", 1)
	for i := range 4 {
		d.must(i < 3, fmt.Sprintf("100.%d.0.1", 64+i), 1)
		d.keep()
	}
	d.let("198.51.100.1", 1) // sent again
	d.want("by source", Reading{InFlight: 10, Pending: 10})
	if r := d.reading(); r.RejectedSource != 5 {
		t.Errorf("%d refused for their source, want 5", r.RejectedSource)
	}
	if n := d.counted(); n != 5 {
		t.Errorf("%d sources are counted, want 5", n)
	}
	d.expireAll()
	if n := d.counted(); n != 0 {
		t.Errorf("%d sources are counted when nobody is there", n)
	}
	d.let("198.51.100.7", 1, 2)
	d.must(false, "198.51.100.7", 3)

	// Who is refused for the limit leaves no trace at its source.
	d.order(enforce(2))
	d.must(false, "192.0.2.1", 1, 2, 3)
	d.order(enforce(4))
	d.let("192.0.2.1", 4, 5)
	d.must(false, "192.0.2.1", 6)

	// Observed, everybody is counted and nobody refused.
	d.order(Order{Limit: 100, AfterRefusal: 100})
	d.let("192.0.2.1", 7, 8)
	if r := d.reading(); r.WouldReject != 2 {
		t.Errorf("%d would have been refused, want 2", r.WouldReject)
	}
	d.expireAll()
	if n := d.counted(); n != 0 {
		t.Errorf("%d sources are counted in the end", n)
	}
}

// More sources than there is room for are let in, uncounted, and that is told.
func TestSourcesFull(t *testing.T) {
	d := newDoorman(t)
	d.sources(source.Policy{Limit: 1, Prefix4: 32, Prefix6: 64})
	d.order(enforce(20))
	counts := d.gate.maps[headgateMapSourceCounts]
	var one uint64 = 1
	keys := make([]uint64, counts.MaxEntries())
	values := make([]uint64, len(keys))
	for i := range keys {
		keys[i], values[i] = uint64(i)<<6, one
	}
	if _, err := counts.BatchUpdate(keys, values, nil); err != nil {
		t.Fatal(err)
	}
	d.let("198.51.100.1", 1, 2, 3)
	if r := d.reading(); r.SourceFull != 3 || r.InFlight != 3 {
		t.Errorf("%d in flight, %d uncounted by source; want 3 each", r.InFlight, r.SourceFull)
	}
	d.expireAll()
	if n := d.counted(); n != len(keys) {
		t.Errorf("%d sources are counted, want the %d others", n, len(keys))
	}
}

func TestClasses(t *testing.T) {
	d := newDoorman(t)
	d.sources(source.Policy{Classes: []source.Class{
		{Sources: prefixes("10.1.0.0/16"), Share: 0.3},
		{Sources: prefixes("10.2.0.0/16", "2001:db8:2::/48"), Share: 0.2},
	}})
	d.order(enforce(10))
	want := func(what string, first, second, others int) {
		t.Helper()
		all, err := d.gate.Classes(d.id)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) != 3 || all[0].InFlight != first || all[1].InFlight != second || all[2].InFlight != others {
			t.Errorf("%s: %+v, want %d, %d and %d in flight", what, all, first, second, others)
		}
		if r := d.reading(); r.InFlight != first+second+others {
			t.Errorf("%s: %d in flight in all, want %d", what, r.InFlight, first+second+others)
		}
	}
	// The others take all that is free and nothing that is not.
	d.let("10.9.0.1", 1, 2, 3, 4, 5)
	d.must(false, "10.9.0.1", 6)
	want("the others", 0, 0, 5)
	d.let("10.1.0.1", 1, 2, 3)
	d.must(false, "10.1.0.1", 4)
	d.let("10.2.0.1", 1)
	d.let("2001:db8:2::1", 1)
	d.must(false, "10.2.0.1", 3)
	want("full", 3, 2, 5)

	// With a higher limit each class's part is larger, and the free one.
	d.order(enforce(20))
	d.let("10.9.0.1", 11, 12, 13, 14, 15)
	d.must(false, "10.9.0.1", 16)
	d.let("10.1.0.1", 11, 12, 13)
	d.must(false, "10.1.0.1", 14)
	want("a higher limit", 6, 2, 10)
	// With a lower one nobody is in until enough have gone.
	d.order(enforce(10))
	d.must(false, "10.1.0.1", 21)
	d.must(false, "10.2.0.1", 21)
	d.must(false, "10.9.0.1", 21)
	want("a lower limit", 6, 2, 10)
	d.expireAll()
	want("nobody", 0, 0, 0)

	// A class may take more than its share while it is free.
	d.let("10.1.0.1", 1, 2, 3, 4, 5, 6, 7, 8)
	d.must(false, "10.1.0.1", 9)
	d.must(false, "10.9.0.1", 1)
	d.let("10.2.0.1", 1, 2)
	want("beyond the share", 8, 2, 0)
	d.expireAll()

	// Without classes units of classes are what all are.
	d.let("10.1.0.1", 1, 2, 3, 4, 5, 6, 7, 8)
	d.sources(source.Policy{})
	d.let("10.9.0.1", 1, 2)
	d.must(false, "10.9.0.1", 3)
	d.expireAll()
	var parts headgateParts
	if err := d.gate.maps[headgateMapClasses].Lookup(d.id, &parts); err != nil {
		t.Fatal(err)
	}
	if parts.Free != 0 {
		t.Errorf("%d are in the free part in the end", parts.Free)
	}
	for i, c := range parts.Class {
		if c.Own != 0 || c.Free != 0 || c.Waiting != 0 {
			t.Errorf("class %d in the end: %+v", i, c)
		}
	}
}

// All shares of 1 are the whole limit: nothing of it is lost by rounding.
func TestSharesAddUp(t *testing.T) {
	d := newDoorman(t)
	d.sources(source.Policy{Classes: []source.Class{
		{Sources: prefixes("10.1.0.0/16"), Share: 0.7},
		{Sources: prefixes("10.2.0.0/16"), Share: 0.1},
		{Sources: prefixes("10.3.0.0/16"), Share: 0.2},
	}})
	for _, limit := range []int{1, 7, 10, 30, 100} {
		d.order(enforce(limit))
		for i := range limit + 5 {
			for class := range 3 {
				d.admits(fmt.Sprintf("10.%d.0.1:%d", class+1, i+1))
			}
			d.keep()
		}
		all, err := d.gate.Classes(d.id)
		if err != nil {
			t.Fatal(err)
		}
		for i, share := range []int{7, 1, 2} {
			if most := limit * share / 10; all[i].InFlight < most {
				t.Errorf("limit %d: %d of class %d, its share is %d", limit, all[i].InFlight, i, most)
			}
		}
		if r := d.reading(); r.InFlight != limit {
			t.Errorf("limit %d: %d in flight", limit, r.InFlight)
		}
		d.expireAll()
	}
}

// An agent's successor finds what the kernel was told, and changes the difference.
func TestSourcesAreTakenOver(t *testing.T) {
	dir := stateOf(t)
	g := open(t, Options{Dir: dir})
	d := doormanOf(t, g)
	p := source.Policy{Exempt: prefixes("198.51.100.0/28", "203.0.113.0/24"), Limit: 1, Prefix4: 32, Prefix6: 64}
	d.sources(p)
	d.order(enforce(10))
	d.let("192.0.2.1", 1)
	seed := g.sources.policies[d.id].Seed
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}

	g = open(t, Options{Dir: dir})
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	d = doormanOf(t, g)
	p.Exempt = prefixes("198.51.100.0/28")
	d.sources(p)
	d.order(enforce(10))
	if now := g.sources.policies[d.id].Seed; now != seed || len(g.sources.prefixes[d.id]) != 1 {
		t.Errorf("seed %d, was %d; prefixes %v", now, seed, g.sources.prefixes[d.id])
	}
	d.must(true, "198.51.100.1", 1, 2)
	d.let("203.0.113.1", 1)
	d.must(false, "203.0.113.1", 2)
	d.must(false, "192.0.2.1", 2) // the one of before is counted still

	// A target's number goes to another: nothing of it is left.
	d.expireAll()
	if err := g.Retire(testKey); err != nil {
		t.Fatal(err)
	}
	other := TargetKey{Netns: testNetns, Port: testPort + 1}
	if _, err := g.Target(other, enforce(0), monotonic(t)+time.Minute); err != nil {
		t.Fatal(err)
	}
	s := synFrom("198.51.100.1:1000")
	s.to = netip.AddrPortFrom(s.to.Addr(), other.Port)
	if passes(t, d.prog, s) {
		t.Error("exempt by what an earlier target of that number had")
	}
}

func TestSourcesBounded(t *testing.T) {
	d := newDoorman(t)
	d.order(enforce(0))
	var p source.Policy
	for i := range 1<<16 + 1 {
		p.Exempt = append(p.Exempt, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32))
	}
	if err := d.gate.SetSources(testKey, p); !errors.Is(err, ErrFull) {
		t.Errorf("%v, want that there is no room", err)
	}
	d.must(false, "10.0.0.1", 1)
	p = source.Policy{Classes: make([]source.Class, MaxClasses+1)}
	if err := d.gate.SetSources(testKey, p); err == nil {
		t.Error("too many classes are accepted")
	}
}
