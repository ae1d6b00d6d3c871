package device

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"headgate/internal/lab"
)

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

// FuzzNetlink: whatever a message of rtnetlink holds, reading it fails or not, and
// nothing behind it is read.
func FuzzNetlink(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 16))
	f.Add(append(make([]byte, 20), 8, 0, 1, 0, 'b', 'p', 'f', 0, 12, 0, 2, 0, 5, 0, 11, 0, 0, 0, 0, 0))
	f.Add(append(make([]byte, 16), 5, 0, 3, 0, 'x'))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = b[:len(b):len(b)]
		if d, _, err := parseDevice(b); err == nil && len(b) < 16 {
			t.Errorf("%d bytes are enough for %+v", len(b), d)
		}
		if filter, err := parseFilter(b); err == nil && len(b) < 20 {
			t.Errorf("%d bytes are enough for %+v", len(b), filter)
		}
	})
}
