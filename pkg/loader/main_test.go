package loader

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/scope"
)

// bpffs is a BPF file system of these tests' own; empty without root.
var bpffs string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 || os.Getenv(lab.SkipRoot) == "1" {
		return lab.Main(m)
	}
	dir, unmount, err := lab.MountBPF()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	bpffs = dir
	code := lab.Main(m, dir)
	if err := unmount(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// stateOf is a state directory that no other test uses.
func stateOf(t testing.TB) string {
	t.Helper()
	lab.NeedRoot(t)
	return filepath.Join(bpffs, strings.ReplaceAll(t.Name(), "/", "_"))
}

// open opens a gate; the caller closes it, or removes it.
func open(t testing.TB, o Options) *Gate {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	g, err := Open(o)
	if err != nil {
		t.Fatalf("open the gate: %v", err)
	}
	return g
}

// openForTest opens a gate that goes with the test.
func openForTest(t testing.TB) *Gate {
	t.Helper()
	g := open(t, Options{Dir: stateOf(t)})
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Errorf("remove the gate: %v", err)
		}
	})
	return g
}

// logOf is a logger whose text can be read.
func logOf() (*slog.Logger, *bytes.Buffer) {
	var text bytes.Buffer
	return slog.New(slog.NewTextHandler(&text, nil)), &text
}

// monotonic is CLOCK_MONOTONIC, on which leases and reservations end.
func monotonic(t testing.TB) time.Duration {
	t.Helper()
	now, err := clock()
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// netnsOf opens the network namespace of a host, until the test ends.
func netnsOf(t testing.TB, h *lab.Host) *scope.Netns {
	t.Helper()
	ns, err := scope.OpenNetns(h.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// cgroupRoot is where the programs that count connections are attached.
func cgroupRoot(t testing.TB) string {
	t.Helper()
	root, err := scope.Cgroup2()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// mustNotExist checks that a path is gone.
func mustNotExist(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there (%v)", path, err)
	}
}

// mustRead is what is counted on a target.
func mustRead(t testing.TB, g *Gate, id uint32) Reading {
	t.Helper()
	r, err := g.Reading(id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
