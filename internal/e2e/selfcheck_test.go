package e2e

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/scope"
	"headgate/pkg/status"
)

// strangers loads a program of somebody else, that returns a verdict whatever comes.
func strangers(t *testing.T, name string, typ ebpf.ProgramType, at ebpf.AttachType, verdict int32) (*ebpf.Program, uint32) {
	t.Helper()
	return strangersOwn(t, name, typ, at, asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()})
}

func strangersOwn(t *testing.T, name string, typ ebpf.ProgramType, at ebpf.AttachType, does asm.Instructions) (*ebpf.Program, uint32) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: typ, AttachType: at, License: "GPL", Instructions: does})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return p, uint32(id)
}

// awaitShadows waits until the agent reports these programs of others, in the
// status and as numbers.
func awaitShadows(t *testing.T, a *agent.Agent, hook string, want ...status.Shadow) {
	t.Helper()
	await(t, "the programs of others are reported", func() (any, bool) {
		s := a.Snapshot()
		return s.Status.Shadowed, slices.Equal(s.Status.Shadowed, want) && s.Shadowed[hook] == len(want)
	})
}

// Somebody's program at the head of a device's chain keeps everything from ours.
// It is reported; nothing waits there any more, and the limit holds all the same.
func TestForeignTCXAtTheHead(t *testing.T) {
	const pass = 0 // TCX_PASS: no other program sees the packet
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	a := startHolding(t, srv, holding(3, time.Minute))
	for range 3 {
		dial(t, cli, to)
	}
	k.await(t, 3)
	p, id := strangers(t, "usurper", ebpf.SchedCLS, ebpf.AttachTCXIngress, pass)
	var l link.Link
	if err := srv.Do(func() (err error) {
		device, err := net.InterfaceByName("cli")
		if err != nil {
			return err
		}
		l, err = link.AttachTCX(link.TCXOptions{Interface: device.Index, Program: p, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
		return err
	}); errors.Is(err, link.ErrNotSupported) {
		t.Skip("no TCX in this kernel")
	} else if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	awaitShadows(t, a, "tc_ingress", status.Shadow{Hook: "tc_ingress", At: "netns:" + srv.NetNS + " cli", ID: id, Name: "usurper"})
	if !knock(t, cli, to) {
		t.Error("admitted over the limit")
	}
	exact(t, srv)
	if reasons := a.NotReady(); len(reasons) > 0 {
		t.Errorf("not ready: %q; the limit holds", reasons)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	awaitShadows(t, a, "tc_ingress")
	c := newCrowd(t, cli, to, 2)
	awaitUnits(t, 3, 2)
	k.closeAll()
	c.wait(t, patience)
	c.close()
	k.empty(t, a)
}

// Somebody's program beside ours at the lookup is reported. As long as it
// chooses no socket, what ours refuses is refused. Whom it gives a socket comes in,
// and is counted.
func TestForeignLookup(t *testing.T) {
	const pass = 1 // SK_PASS
	srv, cli, to := hosts(t)
	ln := listenRaw(t, srv, 64, func(int) error { return nil }) // plain TCP, which a map of sockets takes
	k := keepOn(t, ln)
	a := protect(t, srv, 0)
	ns, err := scope.OpenNetns(srv.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	beside := func(name string, does asm.Instructions, refused bool) {
		t.Helper()
		p, id := strangersOwn(t, name, ebpf.SkLookup, ebpf.AttachSkLookup, does)
		l, err := link.AttachNetNs(ns.Fd(), p)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		awaitShadows(t, a, "sk_lookup", status.Shadow{Hook: "sk_lookup", At: "netns:" + srv.NetNS, ID: id, Name: name})
		if got := knock(t, cli, to); got != refused {
			t.Errorf("beside %s, at a limit of 0: refused %v, want %v", name, got, refused)
		}
	}
	beside("passing", asm.Instructions{asm.Mov.Imm(asm.R0, pass), asm.Return()}, true)
	awaitShadows(t, a, "sk_lookup")

	sockets, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.SockMap, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer sockets.Close()
	raw, err := ln.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(raw.Control(func(fd uintptr) { err = sockets.Put(uint32(0), uint64(fd)) }), err); err != nil {
		t.Fatal(err)
	}
	beside("steering", asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, sockets.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnSkAssign.Call(),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.FnSkRelease.Call(),
		asm.Mov.Imm(asm.R0, pass).WithSymbol("out"),
		asm.Return(),
	}, false)
	k.await(t, 1)
	awaitShadows(t, a, "sk_lookup")
	if n := matches(t, a, srv); n != 1 {
		t.Errorf("%d in flight, want the one that was let in", n)
	}
	if !knock(t, cli, to) {
		t.Error("admitted at a limit of 0")
	}
	k.empty(t, a)
}

// What somebody took off its hook, replaced or unpinned comes back.
func TestHooksComeBack(t *testing.T) {
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	a := protect(t, srv, 2)
	for range 2 {
		dial(t, cli, to)
	}
	k.await(t, 2)
	lookup := lookupLink(t)
	pinned := func() []string {
		names, err := filepath.Glob(filepath.Join(stateDir(), "live", "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	before := pinned()
	enforced := func() (any, bool) { return a.NotReady(), knock(t, cli, to) && len(a.NotReady()) == 0 }

	detach(t, lookup)
	if reasons := a.NotReady(); len(reasons) == 0 || !strings.Contains(reasons[0], "0 of 1") {
		t.Errorf("ready with no program at the lookup: %q", reasons)
	}
	await(t, "attached again, after a detachment", enforced)

	l, err := link.LoadPinnedLink(filepath.Join(stateDir(), "live", "links", lookup), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, _ := strangers(t, "impostor", ebpf.SkLookup, ebpf.AttachSkLookup, 1)
	if err := l.Update(p); err != nil {
		t.Fatal(err)
	}
	await(t, "attached again, after a replacement", enforced)

	lookups, err := ebpf.LoadPinnedMap(filepath.Join(stateDir(), "live", "maps", "lookups"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer lookups.Close()
	for what, change := range map[string]func() error{
		"it was taken away": func() error { return lookups.Delete(uint32(0)) },
		"it was replaced":   func() error { return lookups.Put(uint32(0), p) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if knock(t, cli, to) {
			t.Error("refused with no program of all namespaces: " + what)
		}
		await(t, "the program of all namespaces is back: "+what, enforced)
	}

	ours := pinnedMaps(t)
	if err := os.RemoveAll(filepath.Join(stateDir(), "live")); err != nil {
		t.Fatal(err)
	}
	await(t, "pinned again", func() (any, bool) { return pinned(), slices.Equal(pinned(), before) })
	// A recount has iterators attached, for a moment.
	await(t, "attached once", func() (any, bool) {
		got := attachedPrograms(t, ours)
		return got, maps.Equal(got, whole)
	})
	if err := os.RemoveAll(stateDir()); err != nil {
		t.Fatal(err)
	}
	await(t, "pinned again, the directory too", func() (any, bool) { return pinned(), slices.Equal(pinned(), before) })
	if _, err := agent.Start(configFor(srv, port, fixed(1)), "test", discard()); err == nil || !strings.Contains(err.Error(), "another headgate agent") {
		t.Errorf("a second agent: %v", err)
	}
	if got := target(a); got.InFlight < 2 {
		t.Errorf("counts were lost: %+v", got)
	}
}

// lookupLink is the name of the link at the lookup.
func lookupLink(t *testing.T) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(stateDir(), "live", "links", "sk_lookup_*"))
	if err != nil || len(names) != 1 {
		t.Fatalf("links at the lookup: %v, %v", names, err)
	}
	return filepath.Base(names[0])
}

// A BPF file system that is mounted over ours hides our pins, and nothing else:
// the programs go on, and it is said until it is gone.
func TestStateHidden(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	to := netip.AddrPortFrom(srv.Addr4, port)
	k := keep(t, srv, "tcp", ":8080")
	a := protect(t, srv, 1)
	dial(t, cli, to)
	k.await(t, 1)
	if err := unix.Mount("bpf", bpffs, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	mounted := true
	unmount := func() {
		if mounted {
			mounted = false
			if err := unix.Unmount(bpffs, 0); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(unmount)
	await(t, "it is reported", func() (any, bool) {
		all := a.Status().Troubles
		return all, len(all) == 1 && all[0].Hook == "state" && strings.Contains(all[0].Trouble, "mounted over "+stateDir())
	})
	if !knock(t, cli, to) {
		t.Error("admitted over the limit")
	}
	if reasons := a.NotReady(); len(reasons) > 0 {
		t.Errorf("not ready: %q; the limit holds", reasons)
	}
	if _, err := os.Stat(stateDir()); err == nil {
		t.Error("something was made on the file system that hides ours")
	}
	unmount()
	await(t, "it is over", func() (any, bool) { all := a.Status().Troubles; return all, len(all) == 0 })
	exact(t, srv)
}
