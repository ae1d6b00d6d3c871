package loader

import (
	"fmt"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// flooded says whether the target is in flood mode now.
func (d *doorman) flooded() bool {
	d.t.Helper()
	return d.reading().FloodUntil > monotonic(d.t)
}

// change writes a value of the programs anew.
func change[V any](d *doorman, name string, f func(*V)) {
	d.t.Helper()
	var v V
	if err := d.gate.maps[name].Lookup(d.id, &v); err != nil {
		d.t.Fatal(err)
	}
	f(&v)
	if err := d.gate.maps[name].Update(d.id, v, ebpf.UpdateExist); err != nil {
		d.t.Fatal(err)
	}
}

// calm ends flood mode.
func (d *doorman) calm() {
	d.t.Helper()
	change(d, headgateMapStates, func(st *headgateTargetState) { st.FloodUntil = 0 })
}

// age lets reservations have been there for some time; they last for another minute.
func (d *doorman) age(n int, old time.Duration) {
	d.t.Helper()
	now := monotonic(d.t)
	d.date(n, headgatePending{Since: uint64(now - old), Expires: uint64(now + time.Minute)})
}

// fill takes all slots, from an address each.
func (d *doorman) fill(n int) {
	d.t.Helper()
	for i := range n {
		d.must(true, fmt.Sprintf("203.0.113.%d", i+1), 1000)
	}
}

// A port that is full of handshakes without answer turns to flood mode at once:
// their slots come back, and strangers take none.
func TestFloodBegins(t *testing.T) {
	for _, c := range []struct {
		limit, dead int
		age         time.Duration
		handshake   uint32 // us
		crowd       uint32
		flood       bool
	}{
		{40, 40, 500 * time.Millisecond, 0, 0, true},
		{40, 40, 300 * time.Millisecond, 0, 0, false},      // the kernel may be on its way to a distant client
		{40, 40, 200 * time.Millisecond, 1_000, 0, true},   // not where clients are near
		{40, 40, 200 * time.Millisecond, 30_000, 0, false}, // eight times
		{40, 40, 5 * time.Millisecond, 50, 0, false},       // nor at once
		{40, 20, time.Second, 50, 0, false},                // so few may be a hitch
		{40, 20, time.Second, 50, 255, true},               // not with a crowd before the port
		{40, 19, time.Second, 50, 1000, false},             // less than half
		{4, 4, 500 * time.Millisecond, 0, 200, false},
		{4, 4, 500 * time.Millisecond, 0, 255, true},
		{1, 1, 500 * time.Millisecond, 0, 255, true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			d := newDoorman(t)
			d.order(enforce(c.limit))
			d.fill(c.limit)
			d.keep()
			change(d, headgateMapStates, func(st *headgateTargetState) { st.Handshake, st.Crowd = c.handshake, c.crowd })
			change(d, headgateMapFloods, func(f *headgateFlood) { f.Crowded = uint64(monotonic(t)) })
			d.age(c.dead, c.age)
			if got := d.admits("198.51.100.1:1"); got != c.flood || d.flooded() != c.flood {
				t.Fatalf("admitted %v, flood mode %v; want %v", got, d.flooded(), c.flood)
			}
			if c.flood {
				d.must(true, "198.51.100.1", 2, 3, 4, 5)
				d.want("their slots are free", Reading{
					InFlight: c.limit - c.dead, Pending: c.limit - c.dead, Expired: uint64(c.dead)})
			}
		})
	}
}

// Those that were not answered before their server listened are in vain then, and no
// sign of a flood. Those that were answered have another listener.
func TestFloodIsNoRestart(t *testing.T) {
	for _, c := range []struct {
		name     string
		listened time.Duration // after the SYNs
		answered bool
		age      time.Duration
		free     bool
		flood    bool
	}{
		{"a restart", time.Millisecond, false, time.Second, true, false},
		{"they came after it", 0, false, 2 * time.Millisecond, false, false},
		{"one listener more in a flood", time.Millisecond, true, time.Second, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDoorman(t)
			d.order(enforce(40))
			d.fill(40)
			since := monotonic(t) - c.age
			expires := uint64(monotonic(t)+time.Minute) &^ 1
			if c.answered {
				expires |= 1
			}
			d.date(40, headgatePending{Since: uint64(since), Expires: expires})
			change(d, headgateMapStates, func(st *headgateTargetState) { st.Listened = uint64(since + c.listened) })
			if got := d.admits("198.51.100.1:1"); got != c.free || d.flooded() != c.flood {
				t.Errorf("admitted %v, flood mode %v; want %v, %v", got, d.flooded(), c.free, c.flood)
			}
		})
	}
}

// A limit that falls below what is in flight makes no flood of a handshake that
// is late: nobody could have taken a slot above it.
func TestFloodOfAFallenLimit(t *testing.T) {
	for _, c := range []struct {
		limit, connections, dead int
		flood                    bool
	}{
		{1, 5, 1, false},
		{3, 5, 3, false},
		{3, 2, 3, true},
		{3, 80, 8, false},
		{3, 80, 10, true}, // an eighth of what there is
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			d := newDoorman(t)
			d.order(enforce(200))
			d.fill(c.dead)
			d.keep()
			d.age(c.dead, time.Second)
			change(d, headgateMapStates, func(st *headgateTargetState) {
				st.Units += uint64(c.connections)
				st.Crowd = 1000
			})
			change(d, headgateMapFloods, func(f *headgateFlood) { f.Crowded = uint64(monotonic(t)) })
			d.order(enforce(c.limit))
			if got := d.admits("198.51.100.1:1"); got != (c.flood && c.connections < c.limit) || d.flooded() != c.flood {
				t.Fatalf("admitted %v, flood mode %v; want %v", got, d.flooded(), c.flood)
			}
		})
	}
}

// A client that has shown that it is one is admitted as ever while a flood goes
// on: it has its slot from the SYN on, and is refused there when there is none.
func TestFloodKnowsClients(t *testing.T) {
	d := newDoorman(t)
	d.order(enforce(8))
	now := monotonic(t)
	change(d, headgateMapStates, func(st *headgateTargetState) { st.FloodUntil = uint64(now + time.Minute) })
	change(d, headgateMapFloods, func(f *headgateFlood) { f.Period = uint64(now) })
	for ip, source := range map[string]headgateAddress{
		"198.51.100.1": {Word: [4]uint32{0, 0, 0xffff_0000, 0x016433c6}},
		"2001:db8::1":  {Word: [4]uint32{0xb80d0120}},
	} {
		before := d.reading()
		d.must(true, ip, 1, 2)
		if r := d.reading(); r.InFlight != before.InFlight {
			t.Errorf("%s, a stranger, has a slot: %+v", ip, r)
		}
		err := d.gate.maps[headgateMapAcquaintances].Put(source, headgateAcquaintance{Until: uint64(now + time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
		d.must(true, ip, 3, 4)
		if r := d.reading(); r.InFlight != before.InFlight+2 || r.Pending != r.InFlight {
			t.Errorf("%s, known, has no slot: %+v", ip, r)
		}
	}
	d.must(true, "2001:db8::2:1", 1, 2, 3, 4) // of the same network
	d.must(false, "2001:db8::3", 1)
	d.must(false, "198.51.100.1", 5)
	d.must(false, "198.51.100.2", 1)
	d.want("full", Reading{InFlight: 8, Pending: 8, Rejected: 3})

	// Somebody else uses its address: it is none to rely on.
	d.age(8, time.Second)
	time.Sleep(30 * time.Millisecond)
	d.must(true, "198.51.100.1", 6, 7)
	d.want("a stranger again", Reading{Expired: 8, Rejected: 3})
}

// Strangers keep flood mode on for as long as they come and do not end their
// handshakes; then it is over within five seconds.
func TestFloodEnds(t *testing.T) {
	for _, c := range []struct {
		name            string
		strangers, made uint32
		ago             time.Duration
		on              bool
	}{
		{"a flood", 2000, 0, time.Second, true},
		{"a flood beside clients", 2000, 100, time.Second, true},
		{"chance", 3, 0, time.Second, false},
		{"more than that", 6, 0, time.Second, true},
		{"the same, in a longer time", 6, 0, 2 * time.Second, false},
		{"clients, by SYN cookies", 200, 100, time.Second, false},
		{"the period is not over", 2000, 0, time.Second / 2, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDoorman(t)
			d.order(enforce(20))
			now := monotonic(t)
			begin := now - c.ago - 10*time.Millisecond
			until := now + time.Minute/60
			change(d, headgateMapStates, func(st *headgateTargetState) { st.FloodUntil = uint64(until) })
			change(d, headgateMapFloods, func(f *headgateFlood) {
				f.Period, f.Strangers, f.Made = uint64(begin), c.strangers, c.made
			})
			d.must(true, "198.51.100.1", 1)
			want := until
			if c.on {
				want = begin + 3500*time.Millisecond
			}
			if got := d.reading().FloodUntil; got != want {
				t.Errorf("flood mode until %v from now on, want %v", got-now, want-now)
			}
		})
	}
}

// Where the kernel makes no SYN cookies strangers have a share of its queue.
func TestFloodStrangersShare(t *testing.T) {
	d := newDoorman(t)
	o := enforce(20)
	o.Strangers = 100
	d.order(o)
	now := monotonic(t)
	change(d, headgateMapStates, func(st *headgateTargetState) { st.FloodUntil = uint64(now + time.Minute) })
	change(d, headgateMapFloods, func(f *headgateFlood) { f.Period = uint64(now) })
	admitted, sent := 0, 0
	for monotonic(t)-now < 300*time.Millisecond {
		if sent++; d.admits(fmt.Sprintf("198.51.100.%d:%d", sent%250+1, sent%60_000+1)) {
			admitted++
		}
	}
	if admitted < 20 || admitted > 40 || sent < 1000 {
		t.Errorf("%d of %d admitted in 0.3 s at 100 a second", admitted, sent)
	}
	// It says nothing of the limit.
	if r := d.reading(); r.RejectedFlood != uint64(sent-admitted) || r.Rejected != 0 || r.RefusedIn == d.tick {
		t.Errorf("%d refused; %+v", sent-admitted, r)
	}
}
