package e2e

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"headgate/pkg/agent"
	"headgate/pkg/loader"
)

// pairOf are the two ends of a veth pair.
type pairOf struct {
	name   string
	made   time.Time
	ends   time.Time
	viewed bool // its programs were looked at when it was a second old
}

// Five hundred veth pairs come and go in half a minute, as on a host of short jobs
// in containers, while arrivals are decided on the devices. Each that lives over a
// second has the program once; in the end nothing is left of those that went, and
// nothing was worth a line.
func TestDevicesComeAndGo(t *testing.T) {
	const pairs, during = 500, 30 * time.Second
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	var log words
	cfg := configFor(srv, port, holding(100, time.Second))
	a, err := agent.Start(cfg, "test", slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Remove(); err != nil {
			t.Error(err)
		}
	})
	time.Sleep(time.Second)
	log.text.Reset() // of the start
	before, fds := runtime.NumGoroutine(), openFiles(t)
	devices := filepath.Join(stateDir(), "devices")
	pins := len(pinsUnder(t, devices))

	r := rand.New(rand.NewPCG(1, 2))
	var alive []*pairOf
	viewed := 0
	begin := time.Now()
	for made := 0; made < pairs || len(alive) > 0; time.Sleep(time.Millisecond) {
		err := srv.Do(func() error {
			now := time.Now()
			if made < pairs && now.Sub(begin) >= during*time.Duration(made)/pairs {
				p := &pairOf{name: fmt.Sprintf("v%d", made), made: now}
				p.ends = now.Add(time.Duration(r.ExpFloat64() * float64(time.Second)))
				attrs := netlink.NewLinkAttrs()
				attrs.Name = p.name
				if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: p.name + "peer"}); err != nil {
					return err
				}
				alive = append(alive, p)
				made++
			}
			left := alive[:0]
			for _, p := range alive {
				if !p.viewed && now.Sub(p.made) > time.Second {
					p.viewed = true
					viewed++
					for _, end := range []string{p.name, p.name + "peer"} {
						if n := arrivePrograms(t, end); n != 1 {
							t.Errorf("%s has the program %d times after %v", end, n, now.Sub(p.made))
						}
					}
				}
				if now.Before(p.ends) {
					left = append(left, p)
					continue
				}
				if err := netlink.LinkDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: p.name}}); err != nil {
					return err
				}
			}
			alive = left
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d pairs in %v, %d of which lived over a second", pairs, time.Since(begin), viewed)
	if viewed < pairs/10 {
		t.Errorf("%d pairs lived over a second: that tests nothing", viewed)
	}
	await(t, "nothing is kept of devices that are gone", func() (any, bool) {
		now := pinsUnder(t, devices)
		return now, len(now) == pins
	})
	await(t, "nothing has leaked", func() (any, bool) {
		n, open := runtime.NumGoroutine(), openFiles(t)
		return fmt.Sprintf("%d goroutines, %d before; %d file descriptors, %d before", n, before, open, fds), n <= before+2 && open <= fds+2
	})
	if said := log.String(); said != "" {
		t.Errorf("it said: %s", said)
	}
	if n := a.Snapshot().ProgramsAttached[string(loader.HookLookup)]; n != 1 {
		t.Errorf("%d programs at the lookup", n)
	}
	// And it works as before.
	c := dial(t, cli, to)
	k.await(t, 1)
	c.Close()
	k.empty(t, a)
	empty(t, a)
}

// arrivePrograms is how often the program for arrivals is on a device of the
// calling thread's namespace.
func arrivePrograms(t *testing.T, device string) (n int) {
	t.Helper()
	ids, err := ingressPrograms(device)
	if err != nil {
		t.Errorf("%s: %v", device, err)
		return 0
	}
	for _, id := range ids {
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			t.Error(err)
			continue
		}
		if info, err := p.Info(); err == nil && info.Name == "headgate_arrive" {
			n++
		}
		p.Close()
	}
	return n
}

// ingressPrograms are those of TCX, and of clsact, which is in its place where a
// kernel has no TCX.
func ingressPrograms(device string) (ids []ebpf.ProgramID, err error) {
	dev, err := netlink.LinkByName(device)
	if err != nil {
		return nil, err
	}
	on, err := link.QueryPrograms(link.QueryOptions{Target: dev.Attrs().Index, Attach: ebpf.AttachTCXIngress})
	if err == nil {
		for _, p := range on.Programs {
			ids = append(ids, p.ID)
		}
	} else if !errors.Is(err, unix.EINVAL) && !errors.Is(err, ebpf.ErrNotSupported) {
		return nil, err
	}
	filters, err := netlink.FilterList(dev, netlink.HANDLE_MIN_INGRESS)
	for _, f := range filters {
		if f, ok := f.(*netlink.BpfFilter); ok {
			ids = append(ids, ebpf.ProgramID(f.Id))
		}
	}
	return ids, err
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func pinsUnder(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
