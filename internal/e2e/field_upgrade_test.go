package e2e

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"headgate/pkg/agent"
)

// A pinned map of our name and another shape, as an older or newer version may
// leave, is no map of ours: the agent starts all the same, says which it is and
// what differs, counts the live connections and enforces.
func TestFieldMapOfAnotherShape(t *testing.T) {
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	first := protect(t, srv, 5)
	for range 5 {
		dial(t, cli, to)
	}
	k.await(t, 5)
	awaitInFlight(t, first, 5)
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	size := reshape(t)

	var log bytes.Buffer
	for start := range 2 {
		cfg := configFor(srv, port, fixed(5))
		a, err := agent.Start(cfg, "test", slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatalf("start %d: %v", start, err)
		}
		if !knock(t, cli, to) {
			t.Errorf("start %d: admitted over the limit", start)
		}
		if st := target(a); st.InFlight != 5 {
			t.Errorf("start %d: %d in flight, want 5", start, st.InFlight)
		}
		if start == 0 && (!strings.Contains(log.String(), "map states") || !strings.Contains(log.String(), "ValueSize")) {
			t.Errorf("the log does not say what differs: %s", log.String())
		}
		if again := strings.Count(log.String(), "map states"); again != 1 {
			t.Errorf("start %d: said %d times", start, again)
		}
		m := openMap(t, "states")
		if m.ValueSize() != size {
			t.Errorf("start %d: the map that is pinned has values of %d bytes, want %d", start, m.ValueSize(), size)
		}
		m.Close()
		if err := a.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	exact(t, srv)
}

// reshape puts a map of another shape in the place of one that is pinned, and
// returns the size of what that had.
func reshape(t *testing.T) (size uint32) {
	t.Helper()
	pin := filepath.Join(stateDir(), "live", "maps", "states")
	old, err := ebpf.LoadPinnedMap(pin, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	other, err := ebpf.NewMap(&ebpf.MapSpec{Name: "states", Type: old.Type(), KeySize: old.KeySize(), ValueSize: old.ValueSize() + 8, MaxEntries: old.MaxEntries()})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := errors.Join(os.Remove(pin), other.Pin(pin)); err != nil {
		t.Fatal(err)
	}
	return old.ValueSize()
}
