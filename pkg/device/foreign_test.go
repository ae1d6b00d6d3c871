package device

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// In whatever way others have used a device before us, they go on to.
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
			var on []Attachment
			for range 2 { // the second time ours are there already
				a := b.attacher(0, Options{ForceLegacy: true})
				b.must(a.Sync())
				on = a.Attached()
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
			next := b.attacher(1, Options{ForceLegacy: true})
			kept, err := next.Kept()
			b.must(err)
			if len(kept) != len(on) {
				t.Errorf("Kept() = %v, and it is on %v", kept, on)
			}
			b.must(next.Detach())
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
