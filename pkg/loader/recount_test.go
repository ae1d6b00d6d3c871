package loader

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/scope"
	"headgate/pkg/source"
)

// Connections that were there first, on a kernel that does not tell the end of
// an adopted socket, count until the application closes them; where no program
// sees that, until a recount does.
func TestAdoptBlind(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	ln, err := srv.Listen("tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	connect := func() net.Conn {
		c, err := cli.Dial(t.Context(), "tcp", fmt.Sprintf("%s:8080", srv.Addr4))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	var clients []net.Conn
	var accepted []*net.TCPConn
	for range 10 {
		clients = append(clients, connect())
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		accepted = append(accepted, c.(*net.TCPConn))
	}
	waiting := []net.Conn{connect(), connect()} // nobody accepts these

	g := openForTest(t)
	ns := netnsOf(t, srv)
	root := cgroupRoot(t)
	blind, err := g.load(headgateProgHeadgateAdopt, func(spec *ebpf.CollectionSpec) error {
		return spec.Variables["adopt_blind"].Set(true)
	})
	if err != nil {
		t.Fatal(err)
	}
	g.progs[headgateProgHeadgateAdopt].Close()
	g.progs[headgateProgHeadgateAdopt] = blind
	id, err := g.Target(TargetKey{Netns: ns.Cookie(), Port: 8080}, enforce(100), monotonic(t)+time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.AttachCgroup2(root), g.Adopt(ns)); err != nil {
		t.Fatal(err)
	}
	// want checks the counts before and after a recount, and what that found.
	want := func(when string, before, after, drift int) {
		t.Helper()
		read := func() Reading {
			return mustRead(t, g, id)
		}
		var r Reading
		for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
			if r = read(); r.InFlight == before || time.Now().After(end) {
				break
			}
		}
		if r.InFlight != before || r.Adopted != 12 || r.Unadoptable != 12 {
			t.Errorf("%s: %+v, want %d in flight", when, r, before)
		}
		out, err := g.Recount(g.Targets())
		if err != nil {
			t.Fatal(err)
		}
		if r := read(); r.InFlight != after || out.Blind != after || out.Drift[id].InFlight != drift {
			t.Errorf("%s: a recount makes that %d, of them %d blind, and corrects %+v; want %d and %d", when, r.InFlight, out.Blind, out.Drift, after, drift)
		}
	}
	want("adopted", 12, 12, 0)
	if err := errors.Join(accepted[0].Close(), accepted[1].Close()); err != nil {
		t.Fatal(err)
	}
	want("two are closed", 10, 10, 0)
	if err := accepted[2].CloseWrite(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	want("one is closed for writing alone", 10, 9, 0)
	for _, c := range append(clients[3:5], waiting...) {
		if err := errors.Join(c.(*net.TCPConn).SetLinger(0), c.Close()); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(50 * time.Millisecond)
	// Of those that were accepted the server knows nothing yet, and they count.
	want("four are reset, two of them while nobody had accepted them", 9, 7, 0)
	for _, c := range accepted {
		c.Close()
	}
	want("all are closed", 0, 0, 0)
}

// More slots come free at once than the agent can be told of: the rest is
// counted, and the slots are free all the same.
func TestNoRoomForAWake(t *testing.T) {
	const n = 12_000
	d := newDoorman(t)
	d.order(Order{Enforce: true, Limit: n, AfterRefusal: n, MaxWaiting: 10})
	keys, values := make([]headgatePendingKey, n), make([]headgatePending, n)
	for i := range keys {
		keys[i] = headgatePendingKey{Remote: [4]uint32{uint32(i)}, Target: d.id}
		values[i].Expires = 1
	}
	if _, err := d.gate.maps[headgateMapPendings].BatchUpdate(keys, values, nil); err != nil {
		t.Fatal(err)
	}
	st := headgateTargetState{Units: 1<<32 | n, Pending: n}
	if err := d.gate.maps[headgateMapStates].Put(d.id, st); err != nil {
		t.Fatal(err)
	}
	if err := d.gate.Sweep(); err != nil {
		t.Fatal(err)
	}
	// An event of 16 bytes takes 24 of the ring's 256 KiB.
	if r := d.reading(); r.InFlight != 0 || r.Waiting != 1 || r.Unwoken < n-256<<10/24 || r.Unwoken >= n {
		t.Errorf("%+v", r)
	}
}

// BenchmarkRecount is a recount of a thousand connections at rest.
func BenchmarkRecount(b *testing.B) {
	l := lab.ForTest(b, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	ln, err := srv.Listen("tcp", ":8080")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	g, err := Open(Options{Dir: filepath.Join(bpffs, b.Name()), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer g.Remove()
	ns, err := scope.OpenNetns(srv.NetNS)
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	root, err := scope.Cgroup2()
	if err != nil {
		b.Fatal(err)
	}
	_, err = g.Target(TargetKey{Netns: ns.Cookie(), Port: 8080}, enforce(10_000), 1<<62)
	if err := errors.Join(err, g.AttachCgroup2(root)); err != nil {
		b.Fatal(err)
	}
	for range 1000 {
		c, err := cli.Dial(b.Context(), "tcp", fmt.Sprintf("%s:8080", srv.Addr4))
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		if c, err = ln.Accept(); err != nil {
			b.Fatal(err)
		}
		defer c.Close()
	}
	b.Run("compare", func(b *testing.B) {
		for b.Loop() {
			if out, err := g.Recount(g.Targets()); err != nil || len(out.Drift) > 0 {
				b.Fatal(out, err)
			}
		}
	})
	b.Run("and adopt", func(b *testing.B) {
		for b.Loop() {
			if out, err := g.Recount(g.Targets(), Walk{Netns: ns}); err != nil || len(out.Drift) > 0 {
				b.Fatal(out, err)
			}
		}
	})
}

// Units that are lost are given back to their source and their class, too, and
// what was not counted of these is. What is right stays as it is.
func TestRecountOfParties(t *testing.T) {
	d := newDoorman(t)
	d.sources(source.Policy{
		Limit: 3, Prefix4: 32, Prefix6: 64,
		Classes: []source.Class{{Sources: prefixes("198.51.100.0/24"), Share: 0.5}},
	})
	d.order(enforce(10))
	recount := func(when string, inFlight, sources, classes int) {
		t.Helper()
		out, err := d.gate.Recount(d.gate.Targets())
		if err != nil {
			t.Fatal(err)
		}
		if got := out.Drift[d.id].InFlight; got != inFlight || out.Sources != sources || out.Classes != classes {
			t.Errorf("%s: corrects %d in flight, %d sources, %d classes; want %d, %d, %d", when, got, out.Sources, out.Classes, inFlight, sources, classes)
		}
	}
	d.let("198.51.100.1", 1, 2, 3)
	d.let("198.51.100.2", 1)
	d.let("203.0.113.1", 1)
	d.must(false, "198.51.100.1", 4)
	recount("nothing is wrong", 0, 0, 0)

	// Those of one source are lost, and with them all that there was of it.
	pendings := d.gate.maps[headgateMapPendings]
	var key headgatePendingKey
	var value headgatePending
	var lost []headgatePendingKey
	for it := pendings.Iterate(); it.Next(&key, &value); {
		if key.Remote[3] == binary.NativeEndian.Uint32([]byte{198, 51, 100, 1}) {
			lost = append(lost, key)
		}
	}
	for _, key := range lost {
		if err := pendings.Delete(key); err != nil {
			t.Fatal(err)
		}
	}
	recount("three are lost", 3, 1, 1)
	if n := d.counted(); n != 2 {
		t.Errorf("%d sources are counted, want 2", n)
	}
	d.let("198.51.100.1", 5, 6, 7)
	d.must(false, "198.51.100.1", 8)

	// A source and its class have lost what was counted of them.
	counts := d.gate.maps[headgateMapSourceCounts]
	var gone, n uint64
	for it := counts.Iterate(); it.Next(&gone, &n); {
		if n&0xffffff == 3 {
			break
		}
	}
	if err := counts.Delete(gone); err != nil {
		t.Fatal(err)
	}
	var parts headgateParts
	if err := d.gate.maps[headgateMapClasses].Lookup(d.id, &parts); err != nil {
		t.Fatal(err)
	}
	parts.Class[firstClass].Own--
	parts.Class[firstClass].Waiting += 2
	if err := d.gate.maps[headgateMapClasses].Put(d.id, parts); err != nil {
		t.Fatal(err)
	}
	recount("counted too few", 0, 1, 1)
	recount("then nothing is wrong", 0, 0, 0)
	d.must(false, "198.51.100.1", 9)
	all, err := d.gate.Classes(d.id)
	if err != nil || all[0].InFlight != 4 || all[0].Waiting != 0 || all[1].InFlight != 1 {
		t.Errorf("classes: %+v, %v", all, err)
	}
	d.expireAll()
}

// While SYNs of many sources come and their reservations expire, nothing is
// corrected that is right.
func TestRecountOfPartiesAmongMany(t *testing.T) {
	d := newDoorman(t)
	d.sources(source.Policy{
		Limit: 3, Prefix4: 32, Prefix6: 64,
		Classes: []source.Class{{Sources: prefixes("198.51.100.0/25"), Share: 0.3}, {Sources: prefixes("198.51.100.128/25"), Share: 0.3}},
	})
	d.order(enforce(100))
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for w := range 2 {
		group.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				from := synFrom(fmt.Sprintf("198.51.100.%d:%d", i%256, 1000*w+i%1000+1))
				if _, err := d.prog.Run(&ebpf.RunOptions{Context: from.context()}); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	defer group.Wait()
	defer stop()
	enough := func(n int) bool {
		r := d.reading()
		return n >= 20 && r.Expired >= 100 && r.RejectedSource+r.Rejected >= 100
	}
	begin, n := time.Now(), 0
	for ; time.Since(begin) < time.Second || !enough(n) && time.Since(begin) < lab.Allow(10*time.Second); n++ {
		out, err := d.gate.Recount(d.gate.Targets())
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Drift) > 0 || out.Sources > 0 || out.Classes > 0 {
			t.Fatalf("recount %d corrected what was right: %+v", n, out)
		}
		if err := d.gate.Sweep(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	group.Wait()
	r := d.reading()
	if !enough(n) {
		t.Errorf("%d recounts are no test: %+v", n, r)
	}
	if r.Pending > 0 { // on a quick machine the last ones are swept already
		d.expireAll()
	} else if r.InFlight != 0 {
		t.Errorf("%d in flight, none pending", r.InFlight)
	}
}

// A recount walks the kernel's table of sockets only if there is one that is to be
// counted and is not.
func TestRecountAsksFirst(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	ln, err := srv.Listen("tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var accepted []*net.TCPConn
	for _, addr := range []netip.Addr{srv.Addr4, srv.Addr6} {
		c, err := cli.Dial(t.Context(), "tcp", netip.AddrPortFrom(addr, 8080).String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		accepted = append(accepted, s.(*net.TCPConn))
	}
	g := openForTest(t)
	ns := netnsOf(t, srv)
	root := cgroupRoot(t)
	id, err := g.Target(TargetKey{Netns: ns.Cookie(), Port: 8080}, enforce(100), monotonic(t)+time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.AttachCgroup2(root); err != nil {
		t.Fatal(err)
	}
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		t.Fatal(err)
	}
	defer stats.Close()
	var runs uint64
	always := false
	recount := func(when string, walks bool, missed int) {
		t.Helper()
		out, err := g.Recount(g.Targets(), Walk{Netns: ns, Always: always})
		if err != nil {
			t.Fatal(err)
		}
		info, err := g.progs[headgateProgHeadgateAdopt].Stats()
		if err != nil {
			t.Fatal(err)
		}
		if (info.RunCount > runs) != walks || out.Drift[id].InFlight != -missed {
			t.Errorf("%s: walked %v, want %v; %+v, want %d missed", when, info.RunCount > runs, walks, out, missed)
		}
		runs = info.RunCount
	}
	recount("both are older", true, 2)
	recount("both are counted", false, 0)
	always = true
	recount("both are counted, perhaps by another unit", true, 0)
	always = false

	// What is not there does not hold what it had: it is counted anew.
	forget := func(c *net.TCPConn) {
		t.Helper()
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var deleted error
		err = raw.Control(func(fd uintptr) { deleted = g.maps[headgateMapConns].Delete(uint32(fd)) })
		if err := errors.Join(err, deleted); err != nil {
			t.Fatal(err)
		}
	}
	for i, addr := range []netip.Addr{cli.Addr4, cli.Addr6} {
		exempt := prefixKey(id, netip.PrefixFrom(addr, addr.BitLen()))
		if err := g.maps[headgateMapSources].Put(exempt, headgateSource{Exempt: 1}); err != nil {
			t.Fatal(err)
		}
		forget(accepted[i])
		recount(addr.String()+" is exempt", false, -1)
		if err := g.maps[headgateMapSources].Delete(exempt); err != nil {
			t.Fatal(err)
		}
		recount(addr.String()+" is not", true, 1)
	}

	// Where the kernel cannot look through the records it goes through its table.
	settle := g.progs[headgateProgHeadgateSettle]
	defer settle.Close()
	delete(g.progs, headgateProgHeadgateSettle)
	g.able[CanRecount] = false
	adopted := func() uint64 { return mustRead(t, g, id).Adopted }
	for name, look := range map[string]func() error{
		"settle":  func() error { return g.Settle(ns) },
		"recount": func() error { _, err := g.Recount(g.Targets(), Walk{Netns: ns}); return err },
	} {
		was := adopted()
		forget(accepted[0])
		if err := look(); err != nil || adopted() != was+1 {
			t.Errorf("%s, without records: %v, adopted %d, before %d", name, err, adopted(), was)
		}
	}
}
