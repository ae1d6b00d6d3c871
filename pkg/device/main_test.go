package device

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/program"
	"headgate/pkg/scope"
)

// TestMain also runs the agents that the tests start, and kill.
func TestMain(m *testing.M) {
	if spec := os.Getenv("HEADGATE_TEST_AGENT"); spec != "" {
		if err := agent(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(lab.Main(m))
}

// counter loads a program that counts packets into m and lets them go on.
// Programs of different generations have different tags.
func counter(m *ebpf.Map, name string, generation int) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:    name,
		Type:    ebpf.SchedCLS,
		License: "GPL",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.Mov.Imm(asm.R6, int32(generation)),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, -1).WithSymbol("out"), // TCX_NEXT, TC_ACT_UNSPEC
			asm.Return(),
		},
	})
}

func newCount() (*ebpf.Map, error) {
	return ebpf.NewMap(&ebpf.MapSpec{Name: "count", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
}

// spec is what a test tells an agent.
type spec struct {
	NS, Dir    string
	Name       string // of the program
	Generation int
	Legacy     bool
	Detach     bool // at the end
}

// agent is the process that a test kills. It says when all is attached, and
// ends when its input does.
func agent(text string) error {
	var s spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	ns, err := scope.OpenNetns(s.NS)
	if err != nil {
		return err
	}
	m, err := ebpf.LoadPinnedMap(filepath.Join(s.Dir, "count"), nil)
	if err != nil {
		return err
	}
	prog, err := counter(m, s.Name, s.Generation)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	a, err := New(ns, prog, Options{Dir: s.Dir, ForceLegacy: s.Legacy, Log: log})
	if err != nil {
		return err
	}
	if err := a.Sync(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- a.Run(ctx) }()
	fmt.Println("attached")
	_, _ = os.Stdin.Read(make([]byte, 1))
	cancel()
	err = <-done
	if s.Detach {
		err = errors.Join(err, a.Detach())
	}
	return err
}

// bench is a host of a lab with a program to attach and a place for pins.
type bench struct {
	*lab.Host
	t     *testing.T
	ns    *scope.Netns
	nl    *netlink.Handle
	dir   string
	count *ebpf.Map
	log   *lines
}

func newBench(t *testing.T) *bench {
	t.Helper()
	host := lab.ForTest(t, "a").Host("a")
	b := &bench{Host: host, t: t, log: &lines{}}
	var err error
	b.ns, err = scope.OpenNetns(host.NetNS)
	b.must(err)
	t.Cleanup(func() { b.ns.Close() })
	b.nl = handle(t, host)
	mount, unmount, err := lab.MountBPF()
	b.must(err)
	t.Cleanup(func() { b.must(unmount()) })
	b.dir = filepath.Join(mount, "links")
	b.must(os.Mkdir(b.dir, 0o700))
	b.count, err = newCount()
	b.must(err)
	t.Cleanup(func() { b.count.Close() })
	b.must(b.count.Pin(filepath.Join(b.dir, "count")))
	return b
}

// haveTCX asks the kernel: where there is TCX, a device that is not is ENODEV.
func haveTCX(t *testing.T, p *ebpf.Program) bool {
	t.Helper()
	_, err := link.AttachTCX(link.TCXOptions{Interface: 1 << 30, Program: p, Attach: ebpf.AttachTCXIngress})
	switch {
	case errors.Is(err, unix.ENODEV):
		return true
	case errors.Is(err, link.ErrNotSupported):
		return false
	}
	t.Fatalf("has this kernel TCX? %v", err)
	return false
}

func (b *bench) needTCX() {
	b.t.Helper()
	if !haveTCX(b.t, b.program("probe", 0)) {
		b.t.Skip("no TCX in this kernel")
	}
}

// want is what is to be on each device. Left to itself the code finds out
// what the kernel has.
func (b *bench) want(legacy bool) []string {
	b.t.Helper()
	if legacy || !haveTCX(b.t, b.program("probe", 0)) {
		return []string{"filter hg_test"}
	}
	return []string{"tcx hg_test"}
}

func handle(t *testing.T, h *lab.Host) *netlink.Handle {
	t.Helper()
	fd, err := unix.Open(h.NetNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	nl, err := netlink.NewHandleAt(netns.NsHandle(fd), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nl.Close)
	return nl
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// program loads a program that is closed with the test.
func (b *bench) program(name string, generation int) *ebpf.Program {
	b.t.Helper()
	p, err := counter(b.count, name, generation)
	b.must(err)
	b.t.Cleanup(func() { p.Close() })
	return p
}

// attacher makes one in this process, with the program of a generation.
func (b *bench) attacher(generation int, o Options) *Attacher {
	b.t.Helper()
	o.Dir, o.Log = b.dir, slog.New(b.log)
	a, err := New(b.ns, b.program("hg_test", generation), o)
	b.must(err)
	return a
}

// run runs an attacher until the test or stop ends it.
func (b *bench) run(a *Attacher) (stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stopped := false
	stop = func() {
		cancel()
		if stopped {
			return
		}
		stopped = true
		if err := <-done; err != nil {
			b.t.Errorf("Run: %v", err)
		}
	}
	b.t.Cleanup(stop)
	return stop
}

// veth makes a veth pair; the peer is in the namespace too.
func (b *bench) veth(name, peer string) {
	b.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	b.must(b.nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer}))
}

func (b *bench) link(name string) netlink.Link {
	b.t.Helper()
	l, err := b.nl.LinkByName(name)
	b.must(err)
	return l
}

func (b *bench) index(name string) int { return b.link(name).Attrs().Index }

// programs returns what runs at the ingress of a device, asked of the kernel
// by other means than the code under test uses, in order: TCX, then filters.
func (b *bench) programs(name string) (names []string) {
	b.t.Helper()
	b.must(b.Do(func() error {
		dev, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		on, err := link.QueryPrograms(link.QueryOptions{Target: dev.Attrs().Index, Attach: ebpf.AttachTCXIngress})
		if err == nil { // a kernel without TCX has none
			for _, p := range on.Programs {
				names = append(names, "tcx "+program.Name(p.ID))
			}
		}
		filters, err := netlink.FilterList(dev, netlink.HANDLE_MIN_INGRESS)
		for _, f := range filters {
			kind := f.Type()
			if bpf, ok := f.(*netlink.BpfFilter); ok {
				kind = program.Name(ebpf.ProgramID(bpf.Id))
			}
			names = append(names, "filter "+kind)
		}
		return err
	}))
	return names
}

// sendToSelf sends datagrams over lo, to a socket so that nothing comes back,
// and returns how often they were counted.
func (b *bench) sendToSelf(n int) uint64 {
	b.t.Helper()
	before := b.counted()
	b.must(b.Do(func() error {
		to, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			return err
		}
		defer to.Close()
		for range n {
			if _, err := to.WriteTo([]byte("x"), to.LocalAddr()); err != nil {
				return err
			}
			if err := to.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
				return err
			}
			if _, _, err := to.ReadFrom(make([]byte, 1)); err != nil {
				return err
			}
		}
		return nil
	}))
	return b.counted() - before
}

func (b *bench) counted() (n uint64) {
	b.t.Helper()
	b.must(b.count.Lookup(uint32(0), &n))
	return n
}

// command is an agent in a process of its own.
func (b *bench) command(s spec) *lab.Cmd {
	b.t.Helper()
	s.NS, s.Dir = b.NetNS, b.dir
	text, err := json.Marshal(s)
	b.must(err)
	cmd := b.Command(b.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "HEADGATE_TEST_AGENT="+string(text))
	return cmd
}

// launch starts an agent, to be killed at any time.
func (b *bench) launch(s spec) (kill func()) {
	b.t.Helper()
	cmd := b.command(s)
	in, err := cmd.StdinPipe()
	b.must(err)
	b.must(cmd.Start())
	return func() {
		b.t.Helper()
		b.must(cmd.Process.Kill())
		b.killed(cmd)
		in.Close()
	}
}

func (b *bench) killed(cmd *lab.Cmd) {
	b.t.Helper()
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		b.t.Fatalf("the agent ended by itself: %v", err)
	}
}

// start starts an agent and returns when all is attached. kill ends it with
// SIGKILL, end by ending its input.
func (b *bench) start(generation int, legacy, detach bool) (kill, end func()) {
	b.t.Helper()
	cmd := b.command(spec{Name: "hg_test", Generation: generation, Legacy: legacy, Detach: detach})
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	b.must(err)
	in, err := cmd.StdinPipe()
	b.must(err)
	b.must(cmd.Start())
	line := make([]byte, len("attached"))
	if _, err := out.Read(line); err != nil || string(line) != "attached" {
		_ = cmd.Wait()
		b.t.Fatalf("the agent did not start: %v: %s", err, said.String())
	}
	kill = func() {
		b.t.Helper()
		b.must(cmd.Process.Kill())
		b.killed(cmd)
		in.Close()
	}
	end = func() {
		b.t.Helper()
		in.Close()
		if err := cmd.Wait(); err != nil || said.Len() > 0 {
			b.t.Fatalf("the agent ended: %v, and said %q", err, said.String())
		}
	}
	return kill, end
}

// pins lists what is in the directory, besides what newBench pinned there.
func (b *bench) pins() (names []string) {
	b.t.Helper()
	entries, err := os.ReadDir(b.dir)
	b.must(err)
	for _, e := range entries {
		if e.Name() != "count" {
			names = append(names, e.Name())
		}
	}
	return names
}

// output runs a command in the namespace.
func (b *bench) output(name string, args ...string) string {
	b.t.Helper()
	out, err := b.Command(b.t.Context(), name, args...).CombinedOutput()
	if err != nil {
		b.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// waitFor polls until ok, and returns how long that took.
func (b *bench) waitFor(what string, limit time.Duration, ok func() bool) time.Duration {
	b.t.Helper()
	for begin := time.Now(); ; time.Sleep(2 * time.Millisecond) {
		if ok() {
			return time.Since(begin)
		}
		if time.Since(begin) > limit {
			b.t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

// has says whether an attacher says that it is attached to a device.
func has(a *Attacher, name string) bool {
	for _, at := range a.Attached() {
		if at.Name == name {
			return true
		}
	}
	return false
}

func cookieOf(ns *scope.Netns) string { return strconv.FormatUint(ns.Cookie(), 10) }
