package loader

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"pgregory.net/rapid"
)

// packet is a TCP packet, as simple or odd as its fields say.
type packet struct {
	six        bool
	ipOptions  int    // IPv4: words of them
	fragment   uint16 // IPv4: flags and offset
	extension  []byte // IPv6: headers before TCP's
	protocol   byte   // of what follows the IP header
	tcpOptions int    // words of them
	seq        uint32
	payload    string
}

func segment(seq uint32, payload string) packet {
	return packet{protocol: 6, seq: seq, payload: payload}
}

// bytes is the packet behind an Ethernet header, which the kernel asks for and
// takes off again.
func (p packet) bytes() []byte {
	tcp := make([]byte, 20+4*p.tcpOptions)
	binary.BigEndian.PutUint32(tcp[4:], p.seq)
	tcp[12] = byte(len(tcp)/4) << 4
	tcp = append(tcp, p.payload...)

	ip, etherType := make([]byte, 20+4*p.ipOptions), uint16(0x0800)
	if p.six {
		ip, etherType = make([]byte, 40), 0x86dd
		ip[0] = 6 << 4
		binary.BigEndian.PutUint16(ip[4:], uint16(len(p.extension)+len(tcp)))
		ip[6] = p.protocol
		ip = append(ip, p.extension...)
	} else {
		ip[0] = 4<<4 | byte(len(ip)/4)
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(tcp)))
		binary.BigEndian.PutUint16(ip[6:], p.fragment)
		ip[9] = p.protocol
	}
	b := binary.BigEndian.AppendUint16(make([]byte, 12), etherType)
	return append(append(b, ip...), tcp...)
}

// shortest is how many bytes of the packet the kernel runs programs on at
// least: with a whole IP header, but for options.
func (p packet) shortest() int {
	if p.six {
		return 14 + 40
	}
	return 14 + 20
}

// fataler is what a test and a property have in common.
type fataler interface {
	Helper()
	Errorf(string, ...any)
	Fatalf(string, ...any)
}

// wire passes the packets of connections of target 0 to the programs that
// time them.
type wire struct {
	fataler
	c *ebpf.Collection
}

// newWire skips the test where the kernel's test runs do not show packets to
// programs of this type; on such a kernel only those of real connections are
// seen, and tested.
func newWire(t *testing.T) wire {
	t.Helper()
	c := units(t)
	verdict, err := c.Programs[unitsProgTestPacketShown].Run(&ebpf.RunOptions{Data: segment(1, "x").bytes()})
	if err != nil {
		t.Fatal(err)
	}
	if verdict == 0 {
		t.Skip("this kernel's test runs show no packets to cgroup_skb programs")
	}
	return wire{t, c}
}

func (w wire) put(name string, value any) {
	w.Helper()
	if err := w.c.Maps[name].Put(uint32(0), value); err != nil {
		w.Fatalf("%s: %v", name, err)
	}
}

func (w wire) get(name string, value any) {
	w.Helper()
	if err := w.c.Maps[name].Lookup(uint32(0), value); err != nil {
		w.Fatalf("%s: %v", name, err)
	}
}

// run passes a packet of a connection and returns what is known of it then.
func (w wire) run(prog string, known headgateConn, packet []byte) headgateConn {
	w.Helper()
	w.put(unitsMapGiven, known)
	verdict, err := w.c.Programs[prog].Run(&ebpf.RunOptions{Data: packet})
	if err != nil {
		w.Fatalf("run on %d bytes: %v", len(packet), err)
	}
	if verdict != 1 {
		w.Fatalf("a packet of %d bytes was dropped: %x", len(packet), packet)
	}
	w.get(unitsMapGiven, &known)
	return known
}

func (w wire) receive(known headgateConn, p packet) headgateConn {
	w.Helper()
	return w.run(unitsProgTestPacketIn, known, p.bytes())
}

func (w wire) send(known headgateConn, p packet) headgateConn {
	w.Helper()
	return w.run(unitsProgTestPacketOut, known, p.bytes())
}

// samples returns how often service times were sampled, and their sum.
func (w wire) samples() (uint64, time.Duration) {
	w.Helper()
	var n, sum uint64
	for cpu := range uint32(ebpf.MustPossibleCPU()) {
		var c headgateTargetCounters
		if err := w.c.Maps[unitsMapCounters].Lookup(cpu, &c); err != nil {
			w.Fatalf("counters of CPU %d: %v", cpu, err)
		}
		n += c.Samples[headgateSignalSIGNAL_SERVICE]
		sum += c.Sum[headgateSignalSIGNAL_SERVICE]
	}
	var histograms []headgateHistogram
	w.get(unitsMapHistograms, &histograms)
	var counted uint64
	for _, h := range histograms {
		for _, b := range h.Bucket {
			counted += uint64(b)
		}
	}
	if counted != n {
		w.Errorf("%d samples, %d of them in the histogram", n, counted)
	}
	return n, time.Duration(sum)
}

// Where a packet's payload begins and ends is found whatever stands before it.
func TestPacketPayload(t *testing.T) {
	c := newWire(t).c
	rapid.Check(t, func(t *rapid.T) {
		w := wire{t, c}
		p := packet{
			protocol:   6,
			six:        rapid.Bool().Draw(t, "IPv6"),
			tcpOptions: rapid.IntRange(0, 10).Draw(t, "TCP options"),
			seq:        rapid.Uint32().Draw(t, "sequence number"),
			payload:    strings.Repeat("x", rapid.IntRange(0, 1400).Draw(t, "payload")),
		}
		if !p.six {
			p.ipOptions = rapid.IntRange(0, 10).Draw(t, "IP options")
		}
		known := headgateConn{Counted: 1, InEnd: p.seq, OutEnd: p.seq}
		want := p.seq + uint32(len(p.payload))
		if got := w.receive(known, p); got.InEnd != want || got.OutEnd != p.seq || (got.Asked != 0) != (p.payload != "") {
			t.Errorf("received %+v: %+v", p, got)
		}
		if got := w.send(known, p); got.OutEnd != want || got.InEnd != p.seq {
			t.Errorf("sent %+v: %+v", p, got)
		}
	})
}

// What is not plain TCP over IP changes nothing and is let through.
func TestPacketNotUnderstood(t *testing.T) {
	w := newWire(t)
	hopByHop := make([]byte, 8)
	hopByHop[0] = 6
	known := headgateConn{Counted: 1, InEnd: 100, OutEnd: 100}
	for name, p := range map[string]packet{
		"UDP":                    {protocol: 17, seq: 100, payload: "x"},
		"UDP over IPv6":          {protocol: 17, six: true, seq: 100, payload: "x"},
		"IPv6 extension header":  {protocol: 0, six: true, extension: hopByHop, seq: 100, payload: "x"},
		"IPv6 fragment":          {protocol: 44, six: true, extension: hopByHop, seq: 100, payload: "x"},
		"IPv6 authentication":    {protocol: 51, six: true, extension: make([]byte, 24), seq: 100, payload: "x"},
		"no payload":             {protocol: 6, seq: 100},
		"no payload, options":    {protocol: 6, seq: 100, tcpOptions: 10, ipOptions: 10},
		"IPv6, no payload":       {protocol: 6, six: true, seq: 100},
		"long ago":               segment(1<<32-60000, "xxxx"),
		"keep-alive probe":       segment(99, "x"),
		"already seen":           segment(50, strings.Repeat("x", 50)),
		"beyond the window":      segment(100+65536, "x"),
		"half the numbers ahead": segment(100+1<<31, "x"),
	} {
		if got := w.receive(known, p); got != known {
			t.Errorf("%s, received: %+v", name, got)
		}
		if got := w.send(known, p); got != known && name != "beyond the window" {
			t.Errorf("%s, sent: %+v", name, got)
		}
	}
	if got := w.receive(known, segment(101, "x")); got != known {
		t.Errorf("behind a gap, received: %+v", got)
	}
	// Cut off inside the headers.
	for _, p := range []packet{
		{protocol: 6, seq: 100}, {protocol: 6, seq: 100, ipOptions: 10, tcpOptions: 10}, {protocol: 6, six: true, seq: 100, tcpOptions: 10},
	} {
		whole := p.bytes()
		for n := p.shortest(); n < len(whole); n++ {
			if got := w.run(unitsProgTestPacketIn, known, whole[:n]); got != known {
				t.Errorf("the first %d bytes of %+v, received: %+v", n, p, got)
			}
			if got := w.run(unitsProgTestPacketOut, known, whole[:n]); got != known {
				t.Errorf("the first %d bytes of %+v, sent: %+v", n, p, got)
			}
		}
	}
}

// Nothing that looks like a packet is ever dropped or stops a program.
func TestPacketOfAnyBytes(t *testing.T) {
	c := newWire(t).c
	g := openForTest(t)
	rapid.Check(t, func(t *rapid.T) {
		w := wire{t, c}
		p := packet{
			six:        rapid.Bool().Draw(t, "IPv6"),
			ipOptions:  rapid.IntRange(0, 10).Draw(t, "IP options"),
			fragment:   rapid.Uint16().Draw(t, "fragment"),
			extension:  rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "extension"),
			protocol:   rapid.SampledFrom([]byte{0, 6, 17, 43, 44, 60}).Draw(t, "protocol"),
			tcpOptions: rapid.IntRange(0, 10).Draw(t, "TCP options"),
			seq:        rapid.Uint32().Draw(t, "sequence number"),
			payload: rapid.SampledFrom([]string{"", "\x16\x03\x01", "\x17\x03\x03", "\x14\x03\x03\x00\x01\x01", "\x15"}).Draw(t, "record") +
				string(rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "payload")),
		}
		b := p.bytes()
		for range rapid.IntRange(0, 4).Draw(t, "flips") {
			b[rapid.IntRange(14, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "to")
		}
		b = b[:rapid.IntRange(p.shortest(), len(b)).Draw(t, "length")]
		known := headgateConn{
			Counted: 1,
			InEnd:   rapid.Uint32().Draw(t, "in"), OutEnd: rapid.Uint32().Draw(t, "out"),
			Flags: rapid.Uint32Range(0, 31).Draw(t, "flags"), Asked: rapid.Uint64Range(0, 1).Draw(t, "asked"),
		}
		w.run(unitsProgTestPacketIn, known, b)
		w.run(unitsProgTestPacketOut, known, b)
		for _, name := range []string{headgateProgHeadgateIngress, headgateProgHeadgateEgress} {
			verdict, err := g.progs[name].Run(&ebpf.RunOptions{Data: b})
			if err != nil || verdict != 1 {
				t.Fatalf("%s: verdict %d, %v", name, verdict, err)
			}
		}
	})
}

func TestServiceTime(t *testing.T) {
	for name, near := range map[string]uint32{"": 1000, " where sequence numbers wrap": 1<<32 - 30} {
		t.Run("one request"+name, func(t *testing.T) {
			w := newWire(t)
			c := headgateConn{Counted: 1, InEnd: near, OutEnd: near}
			want := func(what string, n uint64, open bool) {
				t.Helper()
				if got, _ := w.samples(); got != n || (c.Asked != 0) != open {
					t.Errorf("%s: %d samples, want %d; request open %v, want %v", what, got, n, c.Asked != 0, open)
				}
			}
			begun := monotonic(t)
			c = w.receive(c, segment(near, "GET / HTTP"))
			want("the request's first segment", 0, true)
			first := c.Asked
			c = w.send(c, segment(near, ""))
			want("our ACK", 0, true)
			time.Sleep(20 * time.Millisecond)
			c = w.receive(c, segment(near+10, "/1.1\r\n\r\n"))
			want("its last segment", 0, true)
			if time.Duration(c.Asked-first) < 20*time.Millisecond {
				t.Error("it is timed from its first segment")
			}
			time.Sleep(30 * time.Millisecond)
			last := c.Asked
			c = w.send(c, segment(near, "HTTP/1.1 200 "))
			want("the response's first segment", 1, false)
			n, sum := w.samples()
			if sum < 30*time.Millisecond || sum > monotonic(t)-time.Duration(last) || sum > monotonic(t)-begun {
				t.Errorf("%d sample of %v", n, sum)
			}
			c = w.send(c, segment(near+13, "OK\r\n\r\n"))
			want("the rest of it", 1, false)
			c = w.receive(c, segment(near+18, ""))
			want("an ACK", 1, false)
			c = w.receive(c, segment(near+10, "/1.1\r\n\r\n"))
			want("the request's end sent again", 1, false)
			c = w.receive(c, segment(near+17, "\n"))
			want("a keep-alive probe", 1, false)
			c = w.receive(c, segment(near+18, "GET /2"))
			want("the next request", 1, true)
			c = w.send(c, segment(near+13, "OK\r\n\r\n"))
			want("the last response's end sent again", 1, true)
			c = w.send(c, segment(near+19, "HTTP/1.1 404"))
			want("the next response", 2, false)
		})
	}
	t.Run("a server that speaks first", func(t *testing.T) {
		w := newWire(t)
		c := w.send(headgateConn{Counted: 1}, segment(0, "220 hello\r\n"))
		if n, _ := w.samples(); n != 0 || c.Asked != 0 {
			t.Errorf("%d samples, %+v", n, c)
		}
	})
}

func TestCohort(t *testing.T) {
	w := newWire(t)
	conf := headgateTargetConf{Signal: headgateSignalSIGNAL_SERVICE, CohortEpoch: 7, CohortSize: 2}
	w.put(unitsMapConfs, conf)
	cohort := func() (co headgateCohort) {
		t.Helper()
		w.get(unitsMapCohorts, &co)
		return co
	}
	fresh := headgateConn{Counted: 1, Cohort: 7}

	if c := w.receive(headgateConn{Counted: 1, Cohort: 6}, segment(0, "x")); c.Joined != 0 || cohort() != (headgateCohort{}) {
		t.Errorf("admitted before: %+v, %+v", c, cohort())
	}
	first := w.receive(fresh, segment(0, "x"))
	second := w.receive(fresh, segment(0, "x"))
	third := w.receive(fresh, segment(0, "x"))
	if first.Joined == 0 || second.Joined == 0 || third.Joined != 0 {
		t.Errorf("joined at %d, %d, %d; want the first two to", first.Joined, second.Joined, third.Joined)
	}
	if got, want := cohort(), (headgateCohort{Joined: 7<<32 | 2, Starts: first.Joined + second.Joined}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	w.send(third, segment(0, "y"))
	if done := cohort().Done; done != 0 {
		t.Errorf("%d done by one that came too late", done)
	}
	second = w.send(second, segment(0, "y"))
	if got := cohort(); got.Done != 1 || got.Starts != first.Joined || got.Sum == 0 {
		t.Errorf("one of two done: %+v", got)
	}
	if c := w.receive(second, segment(1, "z")); c.Joined != 0 {
		t.Errorf("joined twice: %+v", c)
	}

	// The next cohort begins at zero, and who is late for the last one is not
	// counted in it.
	conf.CohortEpoch = 8
	w.put(unitsMapConfs, conf)
	next := w.receive(headgateConn{Counted: 1, Cohort: 8}, segment(0, "x"))
	w.send(first, segment(0, "y"))
	if got, want := cohort(), (headgateCohort{Joined: 8<<32 | 1, Starts: next.Joined}); got != want {
		t.Errorf("the next one: %+v, want %+v", got, want)
	}
	w.send(next, segment(0, "y"))
	if got := cohort(); got.Done != 1 || got.Starts != 0 {
		t.Errorf("the next one, done: %+v", got)
	}
}
