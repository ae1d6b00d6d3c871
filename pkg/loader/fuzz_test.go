package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"headgate/pkg/scope"
)

// FuzzArrivals plays packets, the agent's questions, orders and time, as the
// bytes say, to the programs that decide on SYNs. Whatever comes: who is counted
// in flight has a reservation, who waits has a place, no packet of others is
// stopped, and no packet makes the kernel refuse to run a program.
func FuzzArrivals(f *testing.F) {
	for _, seed := range arrivalSeeds {
		f.Add([]byte(seed))
	}
	if bpffs == "" {
		f.Skip("skipped: needs root")
	}
	s := newStreet(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		s.reset(t)
		s.script = data
		for steps := 0; len(s.script) > 0 && steps < 50 && !t.Failed(); steps++ {
			s.step(t)
		}
		s.check(t)
		s.expireAll(t)
		s.run(t, headgateProgHeadgateSweep)
		if r := s.reading(t); r.InFlight != 0 || r.Waiting != 0 || r.Pending != 0 {
			t.Errorf("when all is over: %+v", r)
		}
	})
}

// arrivalSeeds are scripts: bytes, two a step, see [street.step].
var arrivalSeeds = []string{
	"\x00\x01\x00\x02\x00\x03\x00\x01\x01\x01",                 // SYNs, again, and at the lookup
	"\x06\x12\x00\x01\x00\x02\x00\x03\x04\x02\x04\x12",         // at a limit of 1, with places to wait
	"\x06\x11\x00\x01\x00\x02\x00\x03\x06\x13\x04\x12\x04\x13", // two wait, and have the next slot and the last
	"\x06\x5a\x00\x01\x00\x41\x02\x01\x02\x41\x03\x01\x07\x00", // a pace, resets
	"\x05\x00\x60\xff\x00\x05\x80\x45\x00\x06\x00",             // what is no packet
	"\x08\x00\x45\x00\x00\x28\x00\x01\x20\x00\x00\x01",         // mutated headers
}

// street is a target with its programs, and the script that is played to it.
type street struct {
	gate   *Gate
	netns  uint64
	id     uint32
	progs  map[string]*ebpf.Program
	tick   uint32
	order  Order
	script []byte

	inForce bool // the order
}

func newStreet(f *testing.F) *street {
	g := openForTest(f)
	ns, err := scope.OpenNetns("")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { ns.Close() })
	if err := g.lead(); err != nil {
		f.Fatal(err)
	}
	s := &street{gate: g, netns: ns.Cookie(), progs: make(map[string]*ebpf.Program)}
	for _, name := range []string{headgateProgHeadgateLookup, headgateProgHeadgateArrive} {
		p, err := g.loadFor(ns, name)
		if err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() { p.Close() })
		s.progs[name] = p
	}
	for _, name := range []string{headgateProgHeadgateClaim, headgateProgHeadgateSweep, headgateProgHeadgateForget, headgateProgHeadgateIngress, headgateProgHeadgateEgress} {
		s.progs[name] = g.progs[name]
	}
	if s.id, err = g.Target(TargetKey{Netns: ns.Cookie(), Port: testPort}, Order{}, 0); err != nil {
		f.Fatal(err)
	}
	return s
}

// reset forgets all that earlier scripts did.
func (s *street) reset(t *testing.T) {
	t.Helper()
	for _, name := range []string{headgateMapPendings, headgateMapHolds, headgateMapClaims} {
		for _, key := range s.keys(t, name) {
			_ = s.gate.maps[name].Delete(key)
		}
	}
	if err := s.gate.zero(s.id); err != nil {
		t.Fatal(err)
	}
	s.give(t, 0x12)
}

func (s *street) keys(t *testing.T, name string) (keys []headgatePendingKey) {
	t.Helper()
	var key headgatePendingKey
	value := make([]byte, s.gate.maps[name].ValueSize())
	it := s.gate.maps[name].Iterate()
	for it.Next(&key, &value) {
		keys = append(keys, key)
	}
	if err := it.Err(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return keys
}

// take returns the next byte of the script, 0 at its end.
func (s *street) take() (b byte) {
	if len(s.script) > 0 {
		b, s.script = s.script[0], s.script[1:]
	}
	return b
}

// give puts an order in force that b describes: limit, places, pace, what is
// refused how, whether there is a lease.
func (s *street) give(t *testing.T, b byte) {
	t.Helper()
	s.tick++
	limit := int(b & 3)
	s.order = Order{Enforce: b&0x80 == 0, Limit: limit, AfterRefusal: limit, Tick: s.tick, Ingress: true, Drop: b&0x20 != 0}
	if b&0x10 != 0 {
		s.order.MaxWaiting, s.order.MaxWait = 3, time.Minute
	}
	if b&0x08 != 0 {
		s.order.PaceInterval, s.order.PaceMaxWait = time.Second, 3*time.Second
	}
	lease := monotonic(t) + time.Minute
	if b&0x04 != 0 && b&0x40 != 0 {
		lease = 0
	}
	s.inForce = s.order.Enforce && lease > 0
	if err := s.gate.Write([]uint32{s.id}, []Order{s.order}, lease); err != nil {
		t.Fatal(err)
	}
}

// step plays what the next bytes of the script say.
func (s *street) step(t *testing.T) {
	t.Helper()
	op, who := s.take(), s.take()
	switch op % 9 {
	case 0: // a SYN, on the device and then at the lookup
		if s.arrive(t, client(who).packet(0x02)) {
			s.lookup(t, client(who).context(testPort, unix.IPPROTO_TCP))
		}
	case 1: // one that only the lookup sees
		s.lookup(t, client(who).context(testPort, unix.IPPROTO_TCP))
	case 2: // other segments
		s.arrive(t, client(who).packet(s.take()))
	case 3: // at the lookup, another port or protocol
		s.lookup(t, client(who).context(uint32(s.take())<<8|0x90, uint32(s.take())))
	case 4: // what the agent asks
		s.claim(t, client(who), uint32(who>>4))
	case 5: // no packet at all
		n := min(int(who), len(s.script))
		b := append(make([]byte, 12), s.script[:n]...)
		s.script = s.script[n:]
		s.arrive(t, b)
		s.exec(t, headgateProgHeadgateClaim, b, 1)
	case 6:
		s.give(t, who)
	case 7: // time passes, or an agent comes
		switch who % 3 {
		case 0:
			s.expireAll(t)
			s.run(t, headgateProgHeadgateSweep)
		case 1:
			s.run(t, headgateProgHeadgateSweep)
		case 2:
			s.run(t, headgateProgHeadgateForget)
		}
	case 8: // a packet with some bytes changed, or cut off
		b := client(who).packet(s.take())
		for range s.take() % 6 {
			b[12+int(s.take())%(len(b)-12)] = s.take()
		}
		if cut := int(s.take()); cut > 0 {
			b = b[:min(len(b), 14+cut)]
		}
		s.arrive(t, b)
		for _, name := range []string{headgateProgHeadgateIngress, headgateProgHeadgateEgress} {
			if verdict, _, ran := s.exec(t, name, b, 0); ran && verdict != 1 {
				t.Errorf("%s: %d", name, verdict)
			}
		}
	}
	s.check(t)
}

// What the program on a device returns.
const (
	tcxNext = 1<<32 - 1
	tcxDrop = 2
)

// exec runs a program on an Ethernet frame. It did not run where the kernel takes
// no such frame, one that ends within its IP header.
func (s *street) exec(t *testing.T, name string, frame []byte, mark uint32) (verdict uint32, out skBuff, ran bool) {
	t.Helper()
	opts := &ebpf.RunOptions{Data: frame}
	if s.progs[name].Type() == ebpf.SchedCLS {
		opts.Context, opts.ContextOut = skBuff{Mark: mark, Netns: halves(s.netns)}, &out
	}
	verdict, err := s.progs[name].Run(opts)
	if err != nil && len(frame) >= 14+40 {
		t.Fatalf("%s on %x: %v", name, frame, err)
	}
	return verdict, out, err == nil
}

// claim asks what the agent asks, and whether the answer is the last slot.
func (s *street) claim(t *testing.T, c client, op uint32) {
	t.Helper()
	verdict, _, ran := s.exec(t, headgateProgHeadgateClaim, c.packet(0x02), op)
	if !ran || op != claimSlot || !s.inForce {
		return
	}
	full := s.reading(t).InFlight >= s.order.Limit
	if answer := Claim(verdict); answer == Done && full || (answer == Last || answer == Full) && !full {
		t.Errorf("the answer is %d, %d of %d are in flight", answer, s.reading(t).InFlight, s.order.Limit)
	}
}

// arrive shows a frame to the program on a device, and says what becomes of it.
func (s *street) arrive(t *testing.T, frame []byte) (passes bool) {
	t.Helper()
	const other = 7
	verdict, out, ran := s.exec(t, headgateProgHeadgateArrive, frame, other)
	if !ran {
		return false
	}
	marked := out.Mark&HoldMark != 0
	if out.Mark&^HoldMark != other {
		t.Errorf("the mark %#x became %#x", other, out.Mark)
	}
	if verdict != tcxNext && verdict != tcxDrop {
		t.Errorf("verdict %d on %x", int32(verdict), frame)
	}
	if (verdict == tcxDrop || marked) && !isOurs(frame) {
		t.Errorf("verdict %d, marked %v on a packet of others: %x", int32(verdict), marked, frame)
	}
	if verdict == tcxDrop && !s.order.Drop {
		t.Errorf("dropped in silence: %x", frame)
	}
	return verdict == tcxNext && !marked
}

// isOurs says whether a frame is a SYN to the target's port.
func isOurs(frame []byte) bool {
	var at int
	switch kind := binary.BigEndian.Uint16(frame[12:]); {
	case kind == unix.ETH_P_IP && frame[14+9] == unix.IPPROTO_TCP:
		at = 14 + int(frame[14]&15)*4
	case kind == unix.ETH_P_IPV6 && frame[14+6] == unix.IPPROTO_TCP:
		at = 14 + 40
	default:
		return false
	}
	return len(frame) >= at+14 && binary.BigEndian.Uint16(frame[at+2:]) == testPort && frame[at+13]&0x12 == 0x02
}

func (s *street) lookup(t *testing.T, context []byte) {
	t.Helper()
	verdict, err := s.progs[headgateProgHeadgateLookup].Run(&ebpf.RunOptions{Context: context})
	if err != nil {
		return // a protocol or family that the kernel does not look up
	}
	if verdict > 1 {
		t.Errorf("verdict %d", verdict)
	}
	protocol, local := binary.NativeEndian.Uint32(context[12:]), binary.NativeEndian.Uint32(context[len(context)-4:])
	if verdict == 0 && (protocol != unix.IPPROTO_TCP || local != testPort) {
		t.Errorf("refused a packet of protocol %d to port %d", protocol, local)
	}
}

// run runs a program that has no packet. Sweeps come as often as they like.
func (s *street) run(t *testing.T, name string) {
	t.Helper()
	if err := s.gate.maps[headgateMapSweeps].Put(uint32(0), uint64(0)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.progs[name].Run(&ebpf.RunOptions{}); err != nil {
		t.Fatal(err)
	}
}

// expireAll lets the time of all reservations and places be over.
func (s *street) expireAll(t *testing.T) {
	t.Helper()
	for _, name := range []string{headgateMapPendings, headgateMapHolds} {
		m := s.gate.maps[name]
		value := make([]byte, m.ValueSize())
		for _, key := range s.keys(t, name) {
			if err := m.Lookup(key, &value); err != nil {
				t.Fatal(err)
			}
			binary.NativeEndian.PutUint64(value, 1) // expires, the first field of both
			if err := m.Put(key, value); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (s *street) reading(t *testing.T) Reading {
	t.Helper()
	return mustRead(t, s.gate, s.id)
}

// check compares the counts with what they count.
func (s *street) check(t *testing.T) {
	t.Helper()
	reserved, held, r := len(s.keys(t, headgateMapPendings)), len(s.keys(t, headgateMapHolds)), s.reading(t)
	if r.InFlight != reserved || r.Pending != reserved || r.Waiting != held {
		t.Errorf("%d reservations, %d places; %+v; script left: %x", reserved, held, r, s.script)
	}
}

// client is one of a few: the low bits say which, and whether by IPv6.
type client byte

func (c client) packet(flags byte) []byte {
	p := packet{protocol: unix.IPPROTO_TCP, six: c&8 != 0, seq: uint32(c >> 6)}
	b := p.bytes()
	at := 14 + 20
	if p.six {
		at = 14 + 40
		b[14+8+15], b[14+24+15] = 1, 1 // from ::1 to ::1
	} else {
		copy(b[14+12:], []byte{127, 0, 0, 1, 127, 0, 0, 1})
	}
	binary.BigEndian.PutUint16(b[at:], 1000+uint16(c&7))
	binary.BigEndian.PutUint16(b[at+2:], testPort)
	b[at+13] = flags
	return b
}

func (c client) context(port, protocol uint32) []byte {
	host := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if c&8 != 0 {
		host = netip.IPv6Loopback()
	}
	b := syn{
		protocol: protocol,
		from:     netip.AddrPortFrom(host, 1000+uint16(c&7)),
		to:       netip.AddrPortFrom(host, 0),
	}.context()
	binary.NativeEndian.PutUint32(b[len(b)-4:], port)
	return b
}

// FuzzEvents: whatever a record of a ring buffer holds, reading it fails or gives
// something that can be told.
func FuzzEvents(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, wakeSlotLen))
	for kind := range byte(4) {
		f.Add(append([]byte{0, 0, 0, 0, kind, 0, 0, 0}, make([]byte, wakeConnLen)...))
	}
	f.Add(append(make([]byte, 48), 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := parseWake(b)
		if (err == nil) != (len(b) >= wakeSlotLen) || w.Client.IsValid() != w.Server.IsValid() || w.Client.Addr().Is4In6() {
			t.Errorf("%+v, %v", w, err)
		}
		if r, err := parseRefusal(b); err == nil && (r.Reason == "" || !r.Client.Addr().IsValid() || r.Client.Addr().Is4In6()) {
			t.Errorf("%+v", r)
		}
	})
}

// FuzzReading: whatever the maps hold of a target, what is read of it can be told.
func FuzzReading(f *testing.F) {
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, 2000))
	f.Add(bytes.Repeat([]byte{0x80, 0}, 500))
	f.Fuzz(func(t *testing.T, b []byte) {
		var (
			state  headgateTargetState
			cohort headgateCohort
			cpus   [2]headgateTargetCounters
		)
		r := bytes.NewReader(append(b, make([]byte, 4096)...))
		for _, v := range []any{&state, &cohort, &cpus} {
			if err := binary.Read(r, binary.NativeEndian, v); err != nil {
				t.Fatal(err)
			}
		}
		got := reading(&state, &cohort, cpus[:])
		if got.InFlight < 0 || got.Waiting < 0 || got.Idle < 0 || got.Peak < 0 || got.CohortJoined < 0 {
			t.Errorf("negative: %+v", got)
		}
	})
}

// FuzzPorts: whatever the table of a predecessor holds, the targets that are read
// from it are such as there is room for, and others can be added and removed.
func FuzzPorts(f *testing.F) {
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, 16*8))
	f.Add(bytes.Repeat([]byte{1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0}, 8))
	f.Add(bytes.Repeat([]byte{2, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0}, 16))
	if bpffs == "" {
		f.Skip("skipped: needs root")
	}
	const places, targets = 16, 4
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: places})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { m.Close() })
	f.Fuzz(func(t *testing.T, b []byte) {
		table := &portTable{m: m, targets: targets}
		b = append(b, make([]byte, 16*places)...)
		for place := range uint32(places) {
			if err := m.Put(place, b[16*place:16*(place+1)]); err != nil {
				t.Fatal(err)
			}
		}
		before, err := table.read()
		if err != nil {
			t.Fatal(err)
		}
		for key, id := range before {
			if id >= targets {
				t.Errorf("target %d of %d: %+v", id, targets, key)
			}
		}
		key := TargetKey{Netns: 7, Port: 9}
		if _, there := before[key]; there {
			return
		}
		err = table.add(key, 3)
		after, readErr := table.read()
		if readErr != nil || err != nil && !errors.Is(err, ErrFull) || err == nil && after[key] != 3 {
			t.Errorf("added: %v, %v, %v", after, err, readErr)
		}
		if err := table.remove(key); err != nil {
			t.Error(err)
		}
		if after, err = table.read(); err != nil || !maps.Equal(after, before) {
			t.Errorf("removed: %v, %v; before it was added %v", after, err, before)
		}
	})
}
