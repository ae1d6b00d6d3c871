package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/loader"
)

// packetPrograms returns what looks at packets: by the cgroup that each is
// attached to, its id.
func packetPrograms(t *testing.T) map[uint64][]ebpf.ProgramID {
	t.Helper()
	dir := filepath.Join(stateDir(), "live", "links")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	attached := make(map[uint64][]ebpf.ProgramID)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "skb_") {
			continue
		}
		l, err := link.LoadPinnedLink(filepath.Join(dir, e.Name()), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		info, err := l.Info()
		if err != nil {
			t.Fatal(err)
		}
		id := info.Cgroup().CgroupId
		attached[id] = append(attached[id], info.Program)
	}
	return attached
}

// effective returns the programs that a packet of a cgroup runs, its parents'
// included.
func effective(t *testing.T, group *lab.Cgroup) []ebpf.ProgramID {
	t.Helper()
	dir, err := os.Open(group.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	var ids []ebpf.ProgramID
	for _, at := range []ebpf.AttachType{ebpf.AttachCGroupInetIngress, ebpf.AttachCGroupInetEgress} {
		r, err := link.QueryPrograms(link.QueryOptions{
			Target: int(dir.Fd()), Attach: at, QueryFlags: unix.BPF_F_QUERY_EFFECTIVE,
		})
		if err != nil {
			t.Fatalf("query %v: %v", at, err)
		}
		for _, p := range r.Programs {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

// runs counts how often some programs ran since statistics were turned on.
func runs(t *testing.T, attached map[uint64][]ebpf.ProgramID) uint64 {
	t.Helper()
	var ids []ebpf.ProgramID
	for _, of := range attached {
		ids = append(ids, of...)
	}
	slices.Sort(ids)
	var n uint64
	for _, id := range slices.Compact(ids) {
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		stats, err := p.Stats()
		p.Close()
		if err != nil {
			t.Fatal(err)
		}
		n += stats.RunCount
	}
	return n
}

func subCgroup(t *testing.T, h *lab.Host, name string) *lab.Cgroup {
	t.Helper()
	group, err := h.SubCgroup(name)
	if err != nil {
		t.Fatal(err)
	}
	return group
}

func cgroupID(t *testing.T, group *lab.Cgroup) uint64 {
	t.Helper()
	id, err := group.ID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestServicePrograms restarts a server, each time in a new cgroup, under an
// agent that was there before it.
func TestServicePrograms(t *testing.T) {
	const restarts, bystanders = 5, 9000
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	spec := func(port int) backend.Spec {
		return backend.Spec{Protocol: "http", Listen: []string{fmt.Sprintf(":%d", port)}}
	}
	apart := subCgroup(t, srv, "bystander")
	if _, err := srv.StartServerIn(t.Context(), apart, spec(bystanders)); err != nil {
		t.Fatal(err)
	}
	a := startAgent(t, srv, port, fixed(1000))
	if got := packetPrograms(t); len(got) > 0 {
		t.Fatalf("attached to %v, and nobody listens", got)
	}
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		t.Fatal(err)
	}
	defer stats.Close()

	var owners []uint64
	var took []time.Duration
	for n := range restarts {
		group := subCgroup(t, srv, fmt.Sprintf("server%d", n))
		owners = append(owners, cgroupID(t, group))
		server, err := srv.StartServerIn(t.Context(), group, spec(port))
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		await(t, "the new server's packets are timed", func() (any, bool) {
			got := a.Snapshot().ProgramsAttached
			return got, got[string(loader.HookIngress)] == n+1 && got[string(loader.HookEgress)] == n+1
		})
		took = append(took, time.Since(begin))

		httpClient{path: "/"}.run(t, cli, netip.AddrPortFrom(srv.Addr4, port))
		if got, want := measured(t, 0, loader.Service).Count, uint64((n+1)*asked); got != want {
			t.Errorf("server %d: %d samples, want %d", n, got, want)
		}
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}
	slices.Sort(took)
	t.Logf("found after %v", took)
	if took[len(took)/2] > 200*time.Millisecond {
		t.Errorf("a new server is found after %v, half of them later than 200ms", took)
	}

	attached := packetPrograms(t)
	for id, programs := range attached {
		if !slices.Contains(owners, id) || len(programs) != 2 {
			t.Errorf("%d programs on cgroup %d; the servers are in %v", len(programs), id, owners)
		}
		for _, other := range effective(t, apart) {
			if slices.Contains(programs, other) {
				t.Errorf("program %d would see a bystander's packets", other)
			}
		}
	}
	before := runs(t, attached)
	if before < restarts*asked {
		t.Fatalf("%d runs for %d requests: they are not counted", before, restarts*asked)
	}
	httpClient{path: "/"}.run(t, cli, netip.AddrPortFrom(srv.Addr4, bystanders))
	if after := runs(t, attached); after != before {
		t.Errorf("a bystander's packets ran programs %d times", after-before)
	}
}
