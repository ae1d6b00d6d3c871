package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"headgate/internal/lab"
)

// An agent that is killed and started again finds its programs and replaces
// them: there is one on each device, and a packet is counted once, throughout.
func TestKilledFiveTimes(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		t.Run(fmt.Sprint("legacy ", legacy), func(t *testing.T) {
			b := newBench(t)
			want := b.want(legacy)
			b.veth("v0", "v1")
			check := func(when string) {
				t.Helper()
				for _, name := range []string{"lo", "v0", "v1"} {
					if got := b.programs(name); !slices.Equal(got, want) {
						t.Errorf("%s: on %s are %q, want %q", when, name, got, want)
					}
				}
				if got := b.sendToSelf(20); got != 20 {
					t.Errorf("%s: 20 packets counted as %d", when, got)
				}
			}
			for i := range 5 {
				// Each second one is an upgrade: a program of another tag.
				kill, _ := b.start(i/2, legacy, false)
				check(fmt.Sprint("run ", i))
				kill()
				check(fmt.Sprint("after kill ", i))
			}
			if want[0] == "filter hg_test" {
				progs, _ := pins{b.dir, b.ns.Cookie()}.list(progPin)
				if len(progs) != 1 {
					t.Errorf("%d programs are kept", len(progs))
				}
			}
			if _, err := exec.LookPath("bpftool"); err == nil {
				shown := b.output("bpftool", "net", "show")
				n := strings.Count(shown, "hg_test") + strings.Count(shown, filterName)
				if n == 0 && want[0] == "tcx hg_test" {
					t.Log("this bpftool does not know TCX")
				} else if n != 3 {
					t.Errorf("bpftool shows %d programs of ours on 3 devices:\n%s", n, shown)
				}
			}
			_, end := b.start(9, legacy, true)
			end()
			for _, name := range []string{"lo", "v0", "v1"} {
				if got := b.programs(name); len(got) > 0 {
					t.Errorf("on %s are %q after all was detached", name, got)
				}
			}
			if got := b.pins(); len(got) > 0 {
				t.Errorf("left: %q", got)
			}
			if got := b.output("tc", "qdisc", "show"); strings.Contains(got, "clsact") {
				t.Errorf("left: %s", got)
			}
		})
	}
}

// However far an agent had come when it was killed, the next one makes it
// whole, and leaves nothing.
func TestKilledAnywhere(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		b := newBench(t)
		for i := range 6 {
			b.veth(fmt.Sprint("v", i), fmt.Sprint("p", i))
		}
		halfway := 0
		for run := range 15 {
			pins := b.pins()
			kill := b.launch(spec{Name: fmt.Sprint("run", run), Legacy: legacy})
			// Begun when it notes something, or a while after its start.
			begun := time.Now().Add(time.Duration(5+rand.IntN(40)) * time.Millisecond)
			for time.Now().Before(begun) && slices.Equal(pins, b.pins()) {
			}
			time.Sleep(time.Duration(rand.IntN(1500)) * time.Microsecond)
			kill()
			seen := map[string]bool{}
			for i := range 6 {
				got := b.programs(fmt.Sprint("v", i))
				if len(got) > 1 {
					t.Errorf("on one device: %q", got)
				}
				seen[fmt.Sprint(got)] = true
			}
			if len(seen) > 1 {
				halfway++
			}
		}
		t.Logf("legacy %v: %d of 15 killed when some devices were done", legacy, halfway)
		_, end := b.start(1, legacy, true)
		for i := range 6 {
			if got := b.programs(fmt.Sprint("v", i)); len(got) != 1 {
				t.Errorf("on one device: %q", got)
			}
		}
		end()
		if got := b.pins(); len(got) > 0 {
			t.Errorf("left: %q", got)
		}
		if got := b.output("tc", "qdisc", "show"); strings.Contains(got, "clsact") {
			t.Errorf("left: %s", got)
		}
	}
}

// A predecessor that used the other way is replaced as well.
func TestOtherWayBefore(t *testing.T) {
	b := newBench(t)
	b.needTCX()
	for i, legacy := range []bool{false, true, false, true} {
		a := b.attacher(0, Options{ForceLegacy: legacy})
		b.must(a.Sync())
		want := map[bool]string{false: "tcx hg_test", true: "filter hg_test"}[legacy]
		if got := b.programs("lo"); !slices.Equal(got, []string{want}) {
			t.Errorf("round %d: %q, want %q", i, got, want)
		}
		if got := a.Attached(); len(got) != 1 || (got[0].Method == Legacy) != legacy {
			t.Errorf("Attached() = %v", got)
		}
	}
}

// When the pins are lost, filters of the same program are still known.
func TestPinsLost(t *testing.T) {
	b := newBench(t)
	b.must(b.attacher(0, Options{ForceLegacy: true}).Sync())
	for _, name := range b.pins() {
		b.must(remove(b.dir + "/" + name))
	}
	a := b.attacher(0, Options{ForceLegacy: true})
	b.must(a.Sync())
	if got := b.programs("lo"); !slices.Equal(got, []string{"filter hg_test"}) {
		t.Errorf("programs: %q", got)
	}
	b.must(a.Detach())
	if got := b.programs("lo"); len(got) > 0 {
		t.Errorf("programs: %q", got)
	}
}

// foreign are the ways in which others may have used a device before us.
// Nothing that shows them may change by one byte.
func TestForeignFiltersUntouched(t *testing.T) {
	bpf := func(prio uint16) func(*bench) {
		return func(b *bench) {
			f := filter{index: b.index("v0"), parent: netlink.HANDLE_MIN_INGRESS, prio: prio, proto: unix.ETH_P_ALL}
			b.must(b.nl.FilterAdd(f.bpf(b.program("foreign", 7).FD(), "foreign")))
		}
	}
	tc := func(args string) func(*bench) {
		return func(b *bench) { b.output("tc", strings.Fields(args)...) }
	}
	const u32 = " protocol ip u32 match ip dport 99 0xffff classid 1:1"
	for name, test := range map[string]struct {
		before []func(*bench)
		order  []string // on the device, while ours is there
	}{
		"clsact alone":   {[]func(*bench){tc("qdisc add dev v0 clsact")}, []string{"filter hg_test"}},
		"ingress qdisc":  {[]func(*bench){tc("qdisc add dev v0 ingress"), tc("filter add dev v0 ingress prio 3" + u32)}, []string{"filter hg_test", "filter u32"}},
		"bpf at prio 1":  {[]func(*bench){tc("qdisc add dev v0 clsact"), bpf(1)}, []string{"filter hg_test", "filter foreign"}},
		"bpf at prio 5":  {[]func(*bench){tc("qdisc add dev v0 clsact"), bpf(5)}, []string{"filter hg_test", "filter foreign"}},
		"u32 at prio 1":  {[]func(*bench){tc("qdisc add dev v0 clsact"), tc("filter add dev v0 ingress prio 1" + u32)}, []string{"filter u32", "filter hg_test"}},
		"u32 at egress":  {[]func(*bench){tc("qdisc add dev v0 clsact"), tc("filter add dev v0 egress prio 1" + u32)}, []string{"filter hg_test"}},
		"in a chain":     {[]func(*bench){tc("qdisc add dev v0 clsact"), tc("filter add dev v0 ingress chain 4 prio 1" + u32)}, []string{"filter u32", "filter hg_test"}},
		"a root qdisc":   {[]func(*bench){tc("qdisc add dev v0 root tbf rate 1gbit burst 100k limit 100k")}, []string{"filter hg_test"}},
		"u32 and bpf":    {[]func(*bench){tc("qdisc add dev v0 clsact"), tc("filter add dev v0 ingress prio 1" + u32), bpf(2)}, []string{"filter u32", "filter hg_test", "filter foreign"}},
		"nothing at all": {nil, []string{"filter hg_test"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.veth("v0", "v1")
			for _, f := range test.before {
				f(b)
			}
			show := func() string {
				return b.output("tc", "qdisc", "show") +
					b.output("tc", "filter", "show", "dev", "v0", "ingress") +
					b.output("tc", "filter", "show", "dev", "v0", "egress") +
					b.output("tc", "chain", "show", "dev", "v0", "ingress")
			}
			before := show()
			for range 2 { // the second time ours are there already
				a := b.attacher(0, Options{ForceLegacy: true})
				b.must(a.Sync())
				if got := b.programs("v0"); !slices.Equal(got, test.order) {
					t.Errorf("on the device: %q, want %q", got, test.order)
				}
				for line := range strings.SplitSeq(before, "\n") {
					if !strings.Contains(show(), line) {
						t.Errorf("no longer shown: %s", line)
					}
				}
				shadows, err := a.Shadowed()
				b.must(err)
				// In the list of the kernel other chains come in any place.
				want := test.order[0] != "filter hg_test" && name != "in a chain"
				if shadowed := len(shadows) > 0; shadowed != want {
					t.Errorf("Shadowed() = %v", shadows)
				}
			}
			b.must(b.attacher(1, Options{ForceLegacy: true}).Detach())
			if after := show(); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
			if got := b.pins(); len(got) > 0 {
				t.Errorf("left: %q", got)
			}
		})
	}
}

// A clsact of ours that others use by now is theirs.
func TestOurClsactInUse(t *testing.T) {
	for _, direction := range []string{"ingress", "egress"} {
		b := newBench(t)
		a := b.attacher(0, Options{ForceLegacy: true})
		b.must(a.Sync())
		b.output("tc", strings.Fields("filter add dev lo "+direction+" prio 9 protocol ip u32 match ip dport 99 0xffff classid 1:1")...)
		b.must(a.Detach())
		if got := b.output("tc", "filter", "show", "dev", "lo", direction); !strings.Contains(got, "u32") || strings.Contains(got, filterName) {
			t.Errorf("%s filters: %s", direction, got)
		}
		b.must(b.attacher(0, Options{ForceLegacy: true}).Detach())
		if got := b.output("tc", "qdisc", "show", "dev", "lo"); !strings.Contains(got, "clsact") {
			t.Errorf("%s: the clsact is gone: %s", direction, got)
		}
	}
}

// Two copies, however they came about, become one.
func TestDuplicateFilter(t *testing.T) {
	b := newBench(t)
	a := b.attacher(0, Options{ForceLegacy: true})
	b.must(a.Sync())
	f := filter{index: b.index("lo"), parent: netlink.HANDLE_MIN_INGRESS, prio: 7, proto: unix.ETH_P_ALL}
	b.must(b.nl.FilterAdd(f.bpf(b.program("hg_test", 0).FD(), filterName)))
	b.must(a.Sync())
	if got := b.programs("lo"); !slices.Equal(got, []string{"filter hg_test"}) {
		t.Errorf("programs: %q", got)
	}
	if got := b.sendToSelf(5); got != 5 {
		t.Errorf("5 packets counted as %d", got)
	}
}

// A block that is shared with other devices is not used, and that is said.
func TestSharedBlock(t *testing.T) {
	b := newBench(t)
	b.veth("v0", "v1")
	for _, dev := range []string{"v0", "v1"} {
		b.output("tc", "qdisc", "add", "dev", dev, "ingress_block", "5", "clsact")
	}
	a := b.attacher(0, Options{ForceLegacy: true})
	if err := a.Sync(); !errors.Is(err, errSharedBlock) || !strings.Contains(err.Error(), "v0") || !strings.Contains(err.Error(), "v1") {
		t.Errorf("Sync: %v", err)
	}
	if got := a.Failed(); len(got) != 2 {
		t.Errorf("Failed() = %v", got)
	}
	if !has(a, "lo") {
		t.Error("nothing on lo")
	}
}

func TestForeignTCX(t *testing.T) {
	b := newBench(t)
	b.needTCX()
	a := b.attacher(0, Options{})
	foreign := func(anchor link.Anchor, name string) (id ebpf.ProgramID) {
		p := b.program(name, 3)
		info, err := p.Info()
		b.must(err)
		id, _ = info.ID()
		b.must(b.Do(func() error {
			l, err := link.AttachTCX(link.TCXOptions{Interface: 1, Program: p, Attach: ebpf.AttachTCXIngress, Anchor: anchor})
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		}))
		return id
	}
	foreign(link.Head(), "was_there")
	b.must(a.Sync())
	if got, err := a.Shadowed(); len(got) > 0 || err != nil {
		t.Errorf("Shadowed() = %v, %v", got, err)
	}
	id := foreign(link.Head(), "came_later")
	foreign(link.Tail(), "behind")
	b.must(a.Sync())
	got, err := a.Shadowed()
	b.must(err)
	if len(got) != 1 || got[0].Name != "lo" || !slices.Equal(got[0].Before, []Program{{id, "came_later"}}) {
		t.Errorf("Shadowed() = %v, want program %d", got, id)
	}
	want := []string{"tcx came_later", "tcx hg_test", "tcx was_there", "tcx behind"}
	if got := b.programs("lo"); !slices.Equal(got, want) {
		t.Errorf("programs: %q, want %q", got, want)
	}
	// An upgrade keeps the place.
	next := b.attacher(1, Options{})
	b.must(next.Sync())
	if got := b.programs("lo"); !slices.Equal(got, want) {
		t.Errorf("after an upgrade: %q, want %q", got, want)
	}
	b.must(next.Detach())
	if got := b.programs("lo"); !slices.Equal(got, slices.Delete(want, 1, 2)) {
		t.Errorf("after Detach: %q", got)
	}
}

// A device that comes is attached within 200 ms, one that goes leaves nothing.
func TestFollow(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		b := newBench(t)
		a := b.attacher(0, Options{ForceLegacy: legacy})
		b.run(a)
		b.waitFor("lo", time.Second, func() bool { return has(a, "lo") })
		var took []time.Duration
		for i := range 10 {
			name := fmt.Sprint("v", i)
			b.veth(name, "p"+name)
			took = append(took, b.waitFor(name, time.Second, func() bool { return has(a, name) && has(a, "p"+name) }))
			b.must(b.nl.LinkDel(b.link(name)))
			b.waitFor(name+" gone", time.Second, func() bool { return !has(a, name) && !has(a, "p"+name) })
		}
		// Each within a second on a machine that is busy with other things,
		// but as a rule in time.
		slices.Sort(took)
		t.Logf("legacy %v: attached after %v, at the latest %v", legacy, took[len(took)/2], took[len(took)-1])
		if took[len(took)/2] > 200*time.Millisecond {
			t.Error("that is too late")
		}
		if bad := b.log.atLeast(slog.LevelWarn); len(bad) > 0 {
			t.Errorf("worth a line: %q", bad)
		}
		for _, p := range b.pins() {
			if strings.Contains(p, "_"+linkPin+"_") && !strings.HasSuffix(p, "_1") || strings.Contains(p, "_"+qdiscPin+"_") && !strings.HasSuffix(p, "_1") {
				t.Errorf("left: %s", p)
			}
		}
	}
}

// A reader that is too slow for the kernel is told that it has missed something.
func TestChangesLost(t *testing.T) {
	b := newBench(t)
	b.veth("v0", "v1")
	h, err := newHost(b.ns, nil, Options{Dir: b.dir, Log: slog.New(b.log)})
	b.must(err)
	changes, err := h.watch(t.Context())
	b.must(err)
	dev := b.link("v0")
	for i := range 3000 {
		b.must(b.nl.LinkSetMTU(dev, 1400+i%2))
	}
	n := 0
	for c := range changes {
		if c.index != dev.Attrs().Index || c.name != "v0" || c.gone {
			t.Errorf("told of %+v", c)
		}
		n++
	}
	t.Logf("told of %d of 3000 changes", n)
}

// Devices in any number come and go. None is attached twice, none is missed,
// nothing is left and nothing is said.
func TestTwoHundredPairs(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		t.Run(fmt.Sprint("legacy ", legacy), func(t *testing.T) {
			b := newBench(t)
			a := b.attacher(0, Options{ForceLegacy: legacy})
			stop := b.run(a)
			want := b.want(legacy)
			living := []string{}
			for i := range 200 {
				name := fmt.Sprint("v", i)
				b.veth(name, "p"+name)
				switch i % 10 {
				case 0:
					living = append(living, name, "p"+name)
					continue
				case 5: // some are seen before they go, most are not
					time.Sleep(5 * time.Millisecond)
				}
				b.must(b.nl.LinkDel(b.link(name)))
			}
			time.Sleep(time.Second)
			for _, name := range living {
				if got := b.programs(name); !slices.Equal(got, want) {
					t.Errorf("on %s: %q, want %q", name, got, want)
				}
			}
			if got := a.Attached(); len(got) != len(living)+1 {
				t.Errorf("attached to %d devices, want %d", len(got), len(living)+1)
			}
			stop()
			pins := len(living) + 1
			if want[0] == "filter hg_test" {
				pins++ // the program's
			}
			if n := len(b.pins()); n != pins {
				t.Errorf("%d pins for %d devices: %q", n, len(living)+1, b.pins())
			}
			if bad := b.log.atLeast(slog.LevelWarn); len(bad) > 0 {
				t.Errorf("worth a line: %q", bad)
			}
			b.must(a.Detach())
			if got := b.pins(); len(got) > 0 {
				t.Errorf("left: %q", got)
			}
		})
	}
}

// A device keeps its program when it is renamed, loses it when it leaves the
// namespace, wherever it goes, and has it again when it is back.
func TestRenamedAndMoved(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		t.Run(fmt.Sprint("legacy ", legacy), func(t *testing.T) {
			b := newBench(t)
			elsewhere := lab.ForTest(t, "b").Host("b")
			want := b.want(legacy)
			a := b.attacher(0, Options{ForceLegacy: legacy})
			b.veth("v0", "v1")
			b.run(a)
			b.waitFor("v0", time.Second, func() bool { return has(a, "v0") })
			b.must(b.nl.LinkSetName(b.link("v0"), "w0"))
			b.waitFor("w0", time.Second, func() bool { return has(a, "w0") && !has(a, "v0") })
			if got := b.programs("w0"); !slices.Equal(got, want) {
				t.Errorf("renamed: %q", got)
			}

			there := &bench{Host: elsewhere, t: t, nl: handle(t, elsewhere)}
			move := func(from, to *bench) {
				t.Helper()
				fd, err := unix.Open(to.NetNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
				b.must(err)
				defer unix.Close(fd)
				b.must(from.nl.LinkSetNsFd(from.link("w0"), fd))
			}
			move(b, there)
			b.waitFor("w0 gone", time.Second, func() bool { return !has(a, "w0") })
			if got := there.programs("w0"); len(got) > 0 {
				t.Errorf("moved away: %q", got)
			}
			move(there, b)
			b.waitFor("w0 back", time.Second, func() bool { return has(a, "w0") })
			if got := b.programs("w0"); !slices.Equal(got, want) {
				t.Errorf("back: %q", got)
			}
			// Out and in faster than we look.
			for range 5 {
				move(b, there)
				move(there, b)
			}
			b.waitFor("w0 back again", time.Second, func() bool { return has(a, "w0") && slices.Equal(b.programs("w0"), want) })
			if bad := b.log.atLeast(slog.LevelWarn); len(bad) > 0 {
				t.Errorf("worth a line: %q", bad)
			}
		})
	}
}

// A device that leaves while no agent is there does not take the program with
// it for good, and its index may be another device's by then.
func TestMovedWhileDead(t *testing.T) {
	b := newBench(t)
	b.needTCX()
	there := &bench{Host: lab.ForTest(t, "b").Host("b"), t: t}
	there.nl = handle(t, there.Host)
	b.veth("v0", "v1")
	b.must(b.attacher(0, Options{}).Sync())
	index := b.index("v0")
	fd, err := unix.Open(there.NetNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	b.must(err)
	defer unix.Close(fd)
	b.must(b.nl.LinkSetNsFd(b.link("v0"), fd))
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = "other", index
	b.must(b.nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}))
	t.Logf("after the move: %q", there.programs("v0"))

	b.must(b.attacher(1, Options{}).Sync())
	if got := there.programs("v0"); len(got) > 0 {
		t.Errorf("still on the device that moved: %q", got)
	}
	if got := b.programs("other"); !slices.Equal(got, []string{"tcx hg_test"}) {
		t.Errorf("on the device of the same index: %q", got)
	}
}

// What somebody else removes comes back, with one line.
func TestTakenAway(t *testing.T) {
	b := newBench(t)
	a := b.attacher(0, Options{ForceLegacy: true})
	b.must(a.Sync())
	b.output("tc", "qdisc", "del", "dev", "lo", "clsact")
	b.must(a.Sync())
	if got := b.programs("lo"); !slices.Equal(got, []string{"filter hg_test"}) {
		t.Errorf("programs: %q", got)
	}
	if got := b.log.atLeast(slog.LevelWarn); len(got) != 1 || !strings.Contains(got[0], "lo") {
		t.Errorf("want one line: %q", got)
	}
}

func TestFilterOption(t *testing.T) {
	b := newBench(t)
	b.veth("v0", "v1")
	b.must(b.attacher(0, Options{}).Sync())
	// The next agent wants fewer.
	a := b.attacher(0, Options{Filter: func(d Device) bool { return d.Kind != "veth" }})
	b.must(a.Sync())
	if got := a.Attached(); len(got) != 1 || !got[0].Loopback || got[0].Name != "lo" || got[0].Kind != "" {
		t.Errorf("Attached() = %v", got)
	}
	for _, name := range []string{"v0", "v1"} {
		if got := b.programs(name); len(got) > 0 {
			t.Errorf("on %s: %q", name, got)
		}
	}
}

// All kinds of devices that this kernel can make.
func TestKinds(t *testing.T) {
	b := newBench(t)
	b.veth("v0", "v1")
	for _, args := range []string{
		"link add br0 type bridge", "link set v0 master br0", "link add mv0 link v1 type macvlan",
		"link add vx0 type vxlan id 7 dstport 4789 local 127.0.0.1", "tuntap add tun0 mode tun", "tuntap add tap0 mode tap",
	} {
		b.output("ip", strings.Fields(args)...)
	}
	for _, legacy := range []bool{true, false} {
		a := b.attacher(0, Options{ForceLegacy: legacy})
		b.must(a.Sync())
		kinds := map[string]string{}
		for _, at := range a.Attached() {
			kinds[at.Name] = at.Kind
			if got := b.programs(at.Name); len(got) != 1 {
				t.Errorf("on %s: %q", at.Name, got)
			}
		}
		for name, kind := range map[string]string{
			"lo": "", "v0": "veth", "v1": "veth", "br0": "bridge", "mv0": "macvlan", "vx0": "vxlan", "tun0": "tun", "tap0": "tun",
		} {
			if got, ok := kinds[name]; !ok || got != kind {
				t.Errorf("legacy %v: %s: attached %v, kind %q", legacy, name, ok, got)
			}
		}
		if f := a.Failed(); len(f) > 0 {
			t.Errorf("Failed() = %v", f)
		}
	}
}

// An attacher without a program finds and removes what is noted.
func TestPinned(t *testing.T) {
	b := newBench(t)
	b.must(b.attacher(0, Options{ForceLegacy: true}).Sync())
	cookies, err := Pinned(b.dir)
	b.must(err)
	if !slices.Equal(cookies, []uint64{b.ns.Cookie()}) {
		t.Errorf("Pinned() = %v, want %s", cookies, cookieOf(b.ns))
	}
	a, err := New(b.ns, nil, Options{Dir: b.dir})
	b.must(err)
	if err := a.Sync(); err == nil {
		t.Error("attached nothing without an error")
	}
	b.must(a.Detach())
	if got := b.programs("lo"); len(got) > 0 {
		t.Errorf("programs: %q", got)
	}
	if cookies, err = Pinned(b.dir); len(cookies) > 0 || err != nil {
		t.Errorf("Pinned() = %v, %v", cookies, err)
	}
	if cookies, err = Pinned(b.dir + "/none"); len(cookies) > 0 || err != nil {
		t.Errorf("Pinned() = %v, %v", cookies, err)
	}
}

// A bridge says that a port is gone when it only left the bridge.
func TestBridgePort(t *testing.T) {
	b := newBench(t)
	b.veth("v0", "v1")
	b.output("ip", "link", "add", "br0", "type", "bridge")
	b.output("ip", "link", "set", "v0", "master", "br0")
	h, err := newHost(b.ns, nil, Options{Dir: b.dir})
	b.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	changes, err := h.watch(ctx)
	b.must(err)
	b.output("ip", "link", "set", "v0", "nomaster")
	b.must(b.nl.LinkSetName(b.link("v0"), "last"))
	for c := range changes {
		if c.gone {
			t.Errorf("told of %+v", c)
		}
		if c.name == "last" {
			break
		}
	}
	cancel()
	for range changes { // until it has closed its socket
	}
}
