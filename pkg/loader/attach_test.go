package loader

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/scope"
)

// site is a host that gates are attached to.
type site struct {
	t      *testing.T
	host   *lab.Host
	netns  *scope.Netns
	cgroup *lab.Cgroup
	id     uint64 // of the cgroup
}

func newSite(t *testing.T) *site {
	t.Helper()
	l := lab.ForTest(t, "srv", "cli")
	s := &site{t: t, host: l.Host("srv"), cgroup: l.Host("srv").Cgroup}
	var err error
	if s.netns, err = scope.OpenNetns(s.host.NetNS); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.netns.Close() })
	if s.id, err = s.cgroup.ID(); err != nil {
		t.Fatal(err)
	}
	return s
}

// attach attaches everything there is.
func (s *site) attach(g *Gate) {
	s.t.Helper()
	err := errors.Join(g.AttachCgroup2(s.cgroup.Path), g.AttachService(s.cgroup.Path, s.id), g.AttachNetns(s.netns))
	if err != nil {
		s.t.Fatal(err)
	}
}

// attached lists the programs at the site as the kernel names them, sorted.
func (s *site) attached() []string {
	s.t.Helper()
	dir, err := os.Open(s.cgroup.Path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer dir.Close()
	var names []string
	query := func(target int, at ebpf.AttachType) {
		found, err := link.QueryPrograms(link.QueryOptions{Target: target, Attach: at})
		if err != nil {
			s.t.Fatalf("query %v: %v", at, err)
		}
		for _, p := range found.Programs {
			prog, err := ebpf.NewProgramFromID(p.ID)
			if err != nil {
				s.t.Fatal(err)
			}
			info, err := prog.Info()
			prog.Close()
			if err != nil {
				s.t.Fatal(err)
			}
			names = append(names, info.Name)
		}
	}
	for _, at := range []ebpf.AttachType{
		ebpf.AttachCGroupSockOps, ebpf.AttachCgroupInetSockRelease,
		ebpf.AttachCGroupInetIngress, ebpf.AttachCGroupInetEgress,
	} {
		query(int(dir.Fd()), at)
	}
	query(s.netns.Fd(), ebpf.AttachSkLookup)
	slices.Sort(names)
	return names
}

func (s *site) wantAttached(when string, want ...string) {
	s.t.Helper()
	// A link whose last reference is closed ends a moment later.
	var got []string
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if got = s.attached(); slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Errorf("%s: attached %q, want %q", when, got, want)
			return
		}
	}
}

// allPrograms are those that stay attached.
var allPrograms = []string{
	headgateProgHeadgateEgress, headgateProgHeadgateIngress, headgateProgHeadgateLookup,
	headgateProgHeadgateRelease, headgateProgHeadgateSockops,
}

// stranger attaches a program of somebody else's beside ours and pins its link.
func (s *site) stranger(pin string) {
	s.t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "stranger", Type: ebpf.SockOps, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	defer p.Close()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: s.cgroup.Path, Attach: ebpf.AttachCGroupSockOps, Program: p})
	if err != nil {
		s.t.Fatal(err)
	}
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := os.Remove(pin); err != nil {
			s.t.Error(err)
		}
	})
}

// However an agent ended, the next one leaves one program at each hook.
func TestTakeOver(t *testing.T) {
	s := newSite(t)
	dir := stateOf(t)
	for i := range 5 {
		g := open(t, Options{Dir: dir})
		s.attach(g)
		s.attach(g) // once more changes nothing
		s.wantAttached(fmt.Sprintf("start %d", i), allPrograms...)
		want := map[Hook]int{HookSockops: 1, HookRelease: 1, HookLookup: 1, HookIngress: 1, HookEgress: 1}
		for hook, n := range g.Attached() {
			if n != want[hook] {
				t.Errorf("start %d: Attached says %d at %s", i, n, hook)
			}
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		s.wantAttached(fmt.Sprintf("end %d", i), allPrograms...)
	}
	if n, err := Cleanup(dir); err != nil || n != 5 {
		t.Errorf("Cleanup: %d, %v", n, err)
	}
	s.wantAttached("after Cleanup")
	mustNotExist(t, dir)
	if n, err := Cleanup(dir); err != nil || n != 0 {
		t.Errorf("Cleanup of nothing: %d, %v", n, err)
	}
}

// Cleanup removes ours and nothing else, wherever it lies.
func TestCleanupLeavesTheRest(t *testing.T) {
	s := newSite(t)
	dir := stateOf(t)
	beside, inside := filepath.Join(bpffs, "stranger"), filepath.Join(dir, "stranger")
	g := open(t, Options{Dir: dir})
	s.attach(g)
	s.stranger(beside)
	pin(t, inside, nil)
	half := filepath.Join(dir, newPrefix+"1")
	if err := os.Mkdir(half, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := Cleanup(dir); err != nil || n != 5 {
		t.Errorf("Cleanup: %d, %v", n, err)
	}
	s.wantAttached("after Cleanup", "stranger")
	for _, path := range []string{beside, inside} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("a stranger's pin is gone: %v", err)
		}
	}
	mustNotExist(t, filepath.Join(dir, liveName))
	mustNotExist(t, half)
	if err := errors.Join(os.Remove(inside), os.Remove(dir)); err != nil {
		t.Error(err)
	}
}

// The state directory may be the mount point itself.
func TestCleanupOfAMountPoint(t *testing.T) {
	lab.NeedRoot(t)
	dir, unmount, err := lab.MountBPF()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unmount(); err != nil {
			t.Error(err)
		}
	}()
	g := open(t, Options{Dir: dir})
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := Cleanup(dir); err != nil || n != 0 {
		t.Errorf("Cleanup: %d, %v", n, err)
	}
	mustNotExist(t, filepath.Join(dir, liveName))
}

// A start that fails takes back what it made, and leaves what it found.
func TestAbandon(t *testing.T) {
	s := newSite(t)
	dir := stateOf(t)
	first := open(t, Options{Dir: dir})
	s.attach(first)
	if err := first.AttachNetns(&scope.Netns{}); err == nil {
		t.Error("attached to no namespace")
	}
	if err := first.Abandon(); err != nil {
		t.Error(err)
	}
	s.wantAttached("the first start failed")
	mustNotExist(t, dir)

	kept := open(t, Options{Dir: dir})
	if err := kept.AttachCgroup2(s.cgroup.Path); err != nil {
		t.Fatal(err)
	}
	if _, err := kept.Target(TargetKey{Netns: testNetns, Port: testPort}, enforce(1), 0); err != nil {
		t.Fatal(err)
	}
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	second := open(t, Options{Dir: dir})
	s.attach(second)
	s.wantAttached("the second start", allPrograms...)
	if err := second.Abandon(); err != nil {
		t.Error(err)
	}
	s.wantAttached("the second start failed", headgateProgHeadgateRelease, headgateProgHeadgateSockops)
	third := open(t, Options{Dir: dir})
	if len(third.Targets()) != 1 {
		t.Errorf("targets %v", third.Targets())
	}
	if err := third.Remove(); err != nil {
		t.Error(err)
	}
	s.wantAttached("removed")
}

// A start that is tried again finds the namespace as the start before did.
func TestReleaseNetns(t *testing.T) {
	s := newSite(t)
	dir := stateOf(t)
	first := open(t, Options{Dir: dir})
	s.attach(first)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	g := open(t, Options{Dir: dir})
	s.attach(g)
	if err := g.ReleaseNetns(s.netns.Cookie()); err != nil {
		t.Error(err)
	}
	s.wantAttached("taken over, and released", allPrograms...)
	s.attach(g)
	s.wantAttached("attached again", allPrograms...)
	if err := g.DetachNetns(s.netns.Cookie()); err != nil {
		t.Error(err)
	}
	without := slices.DeleteFunc(slices.Clone(allPrograms), func(p string) bool { return p == headgateProgHeadgateLookup })
	s.wantAttached("detached", without...)
	s.attach(g)
	if err := g.ReleaseNetns(s.netns.Cookie()); err != nil {
		t.Error(err)
	}
	s.wantAttached("made by this one, and released", without...)
	if err := errors.Join(g.ReleaseNetns(s.netns.Cookie()), g.Remove()); err != nil {
		t.Error(err)
	}
}

func TestAttachFails(t *testing.T) {
	s := newSite(t)
	g := openForTest(t)
	gone := filepath.Join(s.cgroup.Path, "gone")
	if err := g.AttachCgroup2(gone); err == nil || !strings.Contains(err.Error(), gone) {
		t.Errorf("AttachCgroup2: %v", err)
	}
	if err := g.AttachService(gone, 1); err == nil || !strings.Contains(err.Error(), gone) {
		t.Errorf("AttachService: %v", err)
	}
	if err := g.DetachService(1); err != nil {
		t.Errorf("DetachService of what is not attached: %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(g.state.path, liveName, linksName)); err != nil || len(left) > 0 {
		t.Errorf("links %v, %v", left, err)
	}
}

func TestDetachAndPrune(t *testing.T) {
	s := newSite(t)
	dir := stateOf(t)
	g := open(t, Options{Dir: dir})
	s.attach(g)
	if err := g.DetachService(s.id); err != nil {
		t.Error(err)
	}
	s.wantAttached("DetachService", headgateProgHeadgateLookup, headgateProgHeadgateRelease, headgateProgHeadgateSockops)
	if err := g.AttachService(s.cgroup.Path, s.id); err != nil {
		t.Fatal(err)
	}
	if err := g.Prune(); err != nil {
		t.Error(err)
	}
	s.wantAttached("nothing to prune", allPrograms...)
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}

	g = open(t, Options{Dir: dir})
	if err := errors.Join(g.AttachCgroup2(s.cgroup.Path), g.Prune()); err != nil {
		t.Error(err)
	}
	s.wantAttached("Prune", headgateProgHeadgateRelease, headgateProgHeadgateSockops)
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}

// A cgroup that was removed takes the programs along, not the pins. One that
// comes again is attached to again.
func TestCgroupComesAgain(t *testing.T) {
	s := newSite(t)
	dir := stateOf(t)
	sub := filepath.Join(s.cgroup.Path, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	g := open(t, Options{Dir: dir})
	if err := g.AttachService(sub, 1); err != nil {
		t.Fatal(err)
	}
	if n := g.Attached()[HookIngress]; n != 1 {
		t.Errorf("%d attached, want 1", n)
	}
	if err := os.Remove(sub); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); g.Attached()[HookIngress] != 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("still attached to a cgroup that is gone")
		}
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}

	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	g = open(t, Options{Dir: dir})
	if err := g.AttachService(sub, 1); err != nil {
		t.Errorf("attach again: %v", err)
	}
	if n := g.Attached()[HookIngress]; n != 1 {
		t.Errorf("%d attached, want 1", n)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}

// Where the state of a predecessor cannot be taken over, the count comes from
// the sockets that live.
func TestRebuiltStateIsRecounted(t *testing.T) {
	s := newSite(t)
	if _, err := s.host.StartServer(t.Context(), backend.Spec{Protocol: "line", Listen: []string{":8080"}}); err != nil {
		t.Fatal(err)
	}
	dir := stateOf(t)
	key := TargetKey{Netns: s.netns.Cookie(), Port: testPort}
	start := func() (*Gate, func() Reading) {
		g := open(t, Options{Dir: dir})
		id, err := g.Target(key, enforce(3), monotonic(t)+time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		s.attach(g)
		if err := g.Adopt(s.netns); err != nil {
			t.Fatal(err)
		}
		return g, func() Reading {
			return mustRead(t, g, id)
		}
	}
	dial := func(ip string) net.Conn {
		t.Helper()
		c, err := s.host.Dial(t.Context(), "tcp", net.JoinHostPort(ip, "8080"))
		if err != nil {
			t.Fatal(err)
		}
		// The server speaks first: then the connection is established there too.
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return c
	}

	early := dial("127.0.0.1")
	g, read := start()
	conns := []net.Conn{early, dial("::1"), dial(s.host.Addr4.String())}
	if r := read(); r.InFlight != 3 || r.Adopted != 1 || r.Admitted != 3 {
		t.Errorf("one older, two new: %+v", r)
	}
	if err := g.Adopt(s.netns); err != nil {
		t.Fatal(err)
	}
	if r := read(); r.InFlight != 3 || r.Adopted != 1 {
		t.Errorf("adopted twice: %+v", r)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, liveName, mapsName, "states")); err != nil {
		t.Fatal(err)
	}

	g, read = start()
	defer func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	}()
	if r := read(); r.InFlight != 3 || r.Adopted != 3 {
		t.Errorf("recounted: %+v", r)
	}
	if c, err := s.host.Dial(t.Context(), "tcp", "127.0.0.1:8080"); err == nil {
		c.Close()
		t.Error("a fourth is let in")
	}
	for _, c := range conns {
		c.Close()
	}
	for deadline := time.Now().Add(5 * time.Second); read().InFlight != 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("all are closed: %+v", read())
		}
	}
}
