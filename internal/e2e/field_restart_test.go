package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/loader"
)

// An agent that is killed and started again and again has one program on each
// hook, counts each connection once, and leaves nothing after a clean-up.
func TestFieldRestart(t *testing.T) {
	const restarts = 5
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	t.Cleanup(func() { _, _ = loader.Cleanup(stateDir()) })
	k := keep(t, srv, "tcp", ":8080")
	to := netip.AddrPortFrom(srv.Addr4, port)

	want := map[string]int{
		"headgate_ingress": 1, "headgate_egress": 1, "headgate_sockops": 1, "headgate_release": 1, "headgate_lookup": 1,
	}
	var ours map[ebpf.MapID]bool
	for i := range restarts {
		c, started := startChild(t, srv, childSpec{State: stateDir(), Limit: 2*restarts + 1})
		if started.Error != "" {
			t.Fatalf("start %d: %s", i, started.Error)
		}
		ours = pinnedMaps(t)
		dial(t, cli, to)
		await(t, "a connection is counted once", func() (any, bool) {
			st := c.target(t)
			return st, st.InFlight == 2*i+1 && st.AdmittedTotal == uint64(2*i+1) && st.Pending == 0
		})
		if got := attachedPrograms(t, ours); !maps.Equal(got, want) {
			t.Errorf("start %d: attached programs %v, want %v", i, got, want)
		}
		c.kill(t)
		if got := attachedPrograms(t, ours); !maps.Equal(got, want) {
			t.Errorf("kill %d: attached programs %v, want %v", i, got, want)
		}
		dial(t, cli, to) // counted with no agent there: the next one sees it
	}
	k.await(t, 2*restarts)
	await(t, "no program of a dead agent is left", func() (any, bool) {
		names := loadedPrograms(t, ours)
		// What is attached, and the two that it goes on to.
		left := append(slices.Collect(maps.Keys(want)), "headgate_admit", "headgate_packet")
		slices.Sort(left)
		return names, slices.Equal(names, left)
	})

	c, started := startChild(t, srv, childSpec{State: stateDir(), Limit: 2*restarts + 1})
	if started.Error != "" {
		t.Fatalf("the last start: %s", started.Error)
	}
	if st := c.target(t); st.InFlight != 2*restarts || st.AdmittedTotal != 2*restarts {
		t.Errorf("%d in flight, %d admitted, want %d each", st.InFlight, st.AdmittedTotal, 2*restarts)
	}
	if n := connections(t, srv, port); n != 2*restarts {
		t.Errorf("the kernel has %d connections, the agent %d", n, 2*restarts)
	}
	if _, err := loader.Cleanup(stateDir()); !errors.Is(err, loader.ErrInUse) {
		t.Errorf("a clean-up beside a running agent: %v, want it refused", err)
	}
	k.closeAll()
	await(t, "none in flight", func() (any, bool) {
		st := c.target(t)
		return st, st.InFlight == 0 && st.FinishedTotal == 2*restarts
	})
	c.kill(t)

	n, err := loader.Cleanup(stateDir())
	if err != nil || n != len(want) {
		t.Errorf("the clean-up detached %d programs, %v; want %d", n, err, len(want))
	}
	await(t, "nothing is left", func() (any, bool) {
		names := loadedPrograms(t, ours)
		return names, len(names) == 0
	})
	if got := attachedPrograms(t, ours); len(got) > 0 {
		t.Errorf("programs attached after the clean-up: %v", got)
	}
	if _, err := os.Stat(stateDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state directory after the clean-up: %v", err)
	}
}

// pinnedMaps returns the IDs of the maps of the running agent, by which its
// programs are told from those of other agents on the machine.
func pinnedMaps(t *testing.T) map[ebpf.MapID]bool {
	t.Helper()
	pins, err := filepath.Glob(filepath.Join(stateDir(), "live", "maps", "*"))
	if err != nil || len(pins) == 0 {
		t.Fatalf("pinned maps: %v, %v", pins, err)
	}
	ids := make(map[ebpf.MapID]bool)
	for _, pin := range pins {
		m, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		info, err := m.Info()
		m.Close()
		if err != nil {
			t.Fatal(err)
		}
		id, _ := info.ID()
		ids[id] = true
	}
	return ids
}

// programsWith lists all programs of the kernel that use one of these maps. What goes away
// meanwhile is left out.
func programsWith(t *testing.T, ours map[ebpf.MapID]bool) map[ebpf.ProgramID]string {
	t.Helper()
	found := make(map[ebpf.ProgramID]string)
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, fs.ErrNotExist) {
			return found
		}
		if err != nil {
			t.Fatalf("list programs: %v", err)
		}
		id = next
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue
		}
		info, err := p.Info()
		p.Close()
		if err != nil {
			continue
		}
		used, _ := info.MapIDs()
		if slices.ContainsFunc(used, func(m ebpf.MapID) bool { return ours[m] }) {
			found[id] = info.Name
		}
	}
}

// loadedPrograms returns the names of all programs that use one of these maps.
func loadedPrograms(t *testing.T, ours map[ebpf.MapID]bool) []string {
	t.Helper()
	return slices.Sorted(maps.Values(programsWith(t, ours)))
}

// attachedPrograms counts where programs are attached by their names, of those
// that use one of these maps.
func attachedPrograms(t *testing.T, ours map[ebpf.MapID]bool) map[string]int {
	t.Helper()
	programs := programsWith(t, ours)
	found := make(map[string]int)
	for it := new(link.Iterator); ; it = (&link.Iterator{ID: it.ID}) {
		for it.Next() {
			info, err := it.Link.Info()
			if err != nil {
				t.Fatalf("list links: %v", err)
			}
			if name, ok := programs[info.Program]; ok {
				found[name]++
			}
		}
		it.Close()
		if err := it.Err(); err == nil {
			break
		} else if !errors.Is(err, unix.EAGAIN) { // the next one is only just being made
			t.Fatalf("list links: %v", err)
		}
	}
	for _, id := range filters(t) {
		if name, ok := programs[id]; ok {
			found[name]++
		}
	}
	return found
}

// filters lists the programs that are attached to devices of this process's labs
// under clsact, which knows no links.
func filters(t *testing.T) (ids []ebpf.ProgramID) {
	t.Helper()
	hosts, err := filepath.Glob(fmt.Sprintf("/run/netns/%s%d-*", lab.Prefix, os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range hosts {
		ns, err := netns.GetFromPath(path)
		if err != nil {
			continue // just gone
		}
		nl, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
		if err = errors.Join(err, ns.Close()); err != nil {
			t.Fatal(err)
		}
		defer nl.Close()
		links, err := nl.LinkList()
		if err != nil {
			t.Fatalf("devices of %s: %v", path, err)
		}
		for _, l := range links {
			found, err := nl.FilterList(l, netlink.HANDLE_MIN_INGRESS)
			if err != nil {
				t.Fatalf("filters of %s in %s: %v", l.Attrs().Name, path, err)
			}
			for _, f := range found {
				if bpf, ok := f.(*netlink.BpfFilter); ok {
					ids = append(ids, ebpf.ProgramID(bpf.Id))
				}
			}
		}
	}
	return ids
}
