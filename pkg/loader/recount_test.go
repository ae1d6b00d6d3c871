package loader

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"headgate/internal/lab"
	"headgate/pkg/scope"
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
	ns, err := scope.OpenNetns(srv.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	root, err := scope.Cgroup2()
	if err != nil {
		t.Fatal(err)
	}
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
			all, err := g.Read()
			if err != nil {
				t.Fatal(err)
			}
			return all[id]
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
		out, err := g.Recount([]uint32{id})
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
	const n = 5000
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
	// An event of 16 bytes takes 24 of the ring's 64 KiB.
	if r := d.reading(); r.InFlight != 0 || r.Waiting != 1 || r.Unwoken < n-64<<10/24 || r.Unwoken >= n {
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
	id, err := g.Target(TargetKey{Netns: ns.Cookie(), Port: 8080}, enforce(10_000), 1<<62)
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
			if out, err := g.Recount([]uint32{id}); err != nil || len(out.Drift) > 0 {
				b.Fatal(out, err)
			}
		}
	})
	b.Run("and adopt", func(b *testing.B) {
		for b.Loop() {
			if out, err := g.Recount([]uint32{id}, ns); err != nil || len(out.Drift) > 0 {
				b.Fatal(out, err)
			}
		}
	})
}
