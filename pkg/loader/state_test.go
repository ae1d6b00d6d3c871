package loader

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"headgate/internal/lab"
)

// pin makes a small map and pins it, as anybody might.
func pin(t *testing.T, path string, spec *ebpf.MapSpec) {
	t.Helper()
	if spec == nil {
		spec = &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}
	}
	m, err := ebpf.NewMap(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Pin(path); err != nil {
		t.Fatal(err)
	}
}

func TestStateNotOnBPFFS(t *testing.T) {
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "not", "there")} {
		_, err := Open(Options{Dir: path})
		if !errors.Is(err, ErrNotBPFFS) || !strings.Contains(err.Error(), path) {
			t.Errorf("Open: %v; want one that names %s", err, path)
		}
		if err := CheckState(path); !errors.Is(err, ErrNotBPFFS) {
			t.Errorf("CheckState: %v", err)
		}
	}
	if _, err := Cleanup(t.TempDir()); !errors.Is(err, ErrNotBPFFS) {
		t.Errorf("Cleanup: %v", err)
	}
}

func TestStateInUse(t *testing.T) {
	dir := stateOf(t)
	g := open(t, Options{Dir: dir})
	pid := fmt.Sprintf("pid %d)", os.Getpid())
	second, err := Open(Options{Dir: dir})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), pid) || !strings.Contains(err.Error(), dir) {
		t.Errorf("second Open: %v, %v; want ErrInUse with %q and the directory", second, err, pid)
	}
	if n, err := Cleanup(dir); n != 0 || !errors.Is(err, ErrInUse) {
		t.Errorf("Cleanup beside an agent: %d, %v", n, err)
	}
	if _, err := os.Stat(filepath.Join(dir, liveName, mapsName)); err != nil {
		t.Errorf("the agent's state: %v", err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	g = open(t, Options{Dir: dir})
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	mustNotExist(t, dir)
}

// Whoever begins while another ends has the state directory that is there, or hears
// that it is in use.
func TestStateIsTakenInTurn(t *testing.T) {
	dir := stateOf(t)
	taken := make([]int, 4)
	var all sync.WaitGroup
	for i := range taken {
		all.Go(func() {
			for range 500 {
				s, err := openState(dir)
				if errors.Is(err, ErrInUse) {
					continue
				}
				if err != nil {
					t.Errorf("begin: %v", err)
					return
				}
				taken[i]++
				if err := errors.Join(s.mark(), s.unmark(), s.close()); err != nil {
					t.Errorf("use the directory: %v", err)
				}
			}
		})
	}
	all.Wait()
	t.Logf("taken %v times", taken)
}

// Who only asks whether there is an agent, and so has the lock for a moment, keeps
// none from beginning.
func TestStateIsAskedAfter(t *testing.T) {
	dir := stateOf(t)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	asks, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(asks.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(lockRetry, func() { asks.Close() })
	s, err := openState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.unmark(), s.close()); err != nil {
		t.Error(err)
	}
}

func TestStateIsAdopted(t *testing.T) {
	dir := stateOf(t)
	d := doormanOf(t, open(t, Options{Dir: dir}))
	defer func() {
		if err := d.gate.Remove(); err != nil {
			t.Error(err)
		}
	}()
	d.order(enforce(3))
	other := TargetKey{Netns: testNetns, Port: 1}
	if _, err := d.gate.Target(other, Order{}, 0); err != nil {
		t.Fatal(err)
	}
	d.must(true, "198.51.100.1", 1, 2, 3)
	d.keep()
	d.must(false, "198.51.100.1", 4)
	ids, before := maps.Clone(d.gate.Targets()), d.reading()
	if len(ids) != 2 || before.InFlight != 3 {
		t.Fatalf("targets %v, %+v", ids, before)
	}

	if err := d.gate.Close(); err != nil {
		t.Fatal(err)
	}
	log, text := logOf()
	d.gate = open(t, Options{Dir: dir, Log: log})
	if got := d.gate.Targets(); !maps.Equal(got, ids) {
		t.Errorf("targets %v, want %v", got, ids)
	}
	if after := d.reading(); after != before {
		t.Errorf("counts\n%+v, want\n%+v", after, before)
	}
	if text.Len() > 0 {
		t.Errorf("logged %s", text)
	}
	d.prog = lookupIn(t, d.gate, testNetns)
	d.must(false, "198.51.100.1", 4)
	d.must(true, "198.51.100.1", 1)
	if n := d.reading().InFlight; n != 3 {
		t.Errorf("%d in flight, want 3", n)
	}
}

// A gate that is closed says so, whatever it is asked.
func TestClosedGate(t *testing.T) {
	dir := stateOf(t)
	g := open(t, Options{Dir: dir})
	key := TargetKey{Netns: testNetns, Port: testPort}
	id, err := g.Target(key, enforce(3), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Reading(1 << 20); err == nil || errors.Is(err, os.ErrClosed) {
		t.Errorf("a target that cannot be: %v", err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	for name, ask := range map[string]func() error{
		"Reading":    func() error { _, err := g.Reading(id); return err },
		"Write":      func() error { return g.Write([]uint32{id}, []Order{enforce(3)}, 0) },
		"Target":     func() error { _, err := g.Target(key, enforce(3), 0); return err },
		"new Target": func() error { _, err := g.Target(TargetKey{Netns: testNetns, Port: 1}, Order{}, 0); return err },
	} {
		if err := ask(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: %v, want %v", name, err, os.ErrClosed)
		}
	}
	// These have nothing to do any more.
	if err := errors.Join(g.Write(nil, nil, 0), g.Retire(key), g.Sweep()); err != nil {
		t.Error(err)
	}
	if _, err := Cleanup(dir); err != nil {
		t.Error(err)
	}
}

// What a predecessor pinned is never read as something else than it is.
func TestStateIsRebuilt(t *testing.T) {
	live := func(dir, name string) string { return filepath.Join(dir, liveName, mapsName, name) }
	replace := func(name string, change func(*ebpf.MapSpec)) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			spec, err := loadHeadgate()
			if err != nil {
				t.Fatal(err)
			}
			change(spec.Maps[name])
			if err := os.Remove(live(dir, name)); err != nil {
				t.Fatal(err)
			}
			pin(t, live(dir, name), spec.Maps[name])
		}
	}
	for _, tt := range []struct {
		name    string
		targets int
		spoil   func(t *testing.T, dir string)
		says    []string
	}{
		{
			name:  "a value has grown",
			spoil: replace("states", func(s *ebpf.MapSpec) { s.ValueSize += 8 }),
			says:  []string{"map states", "ValueSize"},
		}, {
			name:  "a key has grown",
			spoil: replace("pendings", func(s *ebpf.MapSpec) { s.KeySize += 4; s.Key = nil }),
			says:  []string{"map pendings", "KeySize"},
		}, {
			name:  "another type",
			spoil: replace("ports", func(s *ebpf.MapSpec) { s.Type = ebpf.LRUHash }),
			says:  []string{"map ports", "LRUHash"},
		}, {
			name: "same sizes, other fields",
			spoil: func(t *testing.T, dir string) {
				m, err := ebpf.LoadPinnedMap(live(dir, layoutMap), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				var key [layoutNameLen]byte
				var text [layoutTextLen]byte
				copy(key[:], "conns")
				if err := m.Lookup(key, &text); err != nil {
					t.Fatal(err)
				}
				copy(text[:], bytes.ReplaceAll(text[:], []byte("value.opened"), []byte("value.joyful")))
				if err := m.Put(key, text); err != nil {
					t.Fatal(err)
				}
			},
			says: []string{"map conns", "the field value.opened is new"},
		}, {
			name: "another version's way of saying it",
			spoil: func(t *testing.T, dir string) {
				if err := os.Remove(live(dir, layoutMap)); err != nil {
					t.Fatal(err)
				}
				pin(t, live(dir, layoutMap), nil)
			},
			says: []string{"map layout"},
		}, {
			name:  "a map is missing",
			spoil: func(t *testing.T, dir string) { _ = os.Remove(live(dir, "conns")) },
			says:  []string{"map conns"},
		}, {
			name:  "the layout is missing",
			spoil: func(t *testing.T, dir string) { _ = os.Remove(live(dir, layoutMap)) },
			says:  []string{"map layout"},
		}, {
			name:    "more targets than there is room for",
			targets: 65,
			spoil:   func(*testing.T, string) {},
			says:    []string{"64 elements", "65 are needed"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // each loads all programs three times
			dir := stateOf(t)
			g := open(t, Options{Dir: dir})
			if _, err := g.Target(TargetKey{Netns: testNetns, Port: testPort}, enforce(1), 0); err != nil {
				t.Fatal(err)
			}
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
			tt.spoil(t, dir)
			// Filters on devices outlive their pins: these say whose they are.
			note := filepath.Join(DevicesDir(dir), "note")
			if err := os.Mkdir(note, 0o700); err != nil {
				t.Fatal(err)
			}

			log, text := logOf()
			g = open(t, Options{Dir: dir, Targets: tt.targets, Log: log})
			defer func() {
				if err := g.Remove(); err != nil {
					t.Error(err)
				}
			}()
			if _, err := os.Stat(note); err != nil {
				t.Errorf("what is noted of devices: %v", err)
			}
			for _, want := range append(tt.says, "WARN", "counting anew") {
				if !strings.Contains(text.String(), want) {
					t.Errorf("the log does not say %q: %s", want, text)
				}
			}
			if n := len(g.Targets()); n != 0 {
				t.Errorf("%d targets were taken over", n)
			}
			for id := range max(tt.targets, 1) {
				if _, err := g.Target(TargetKey{Netns: testNetns, Port: uint16(id + 1)}, enforce(1), 0); err != nil {
					t.Fatalf("target %d: %v", id, err)
				}
			}

			// What was made is taken over by the next one.
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
			text.Reset()
			g = open(t, Options{Dir: dir, Targets: tt.targets, Log: log})
			if text.Len() > 0 || len(g.Targets()) != max(tt.targets, 1) {
				t.Errorf("then: %d targets, logged %q", len(g.Targets()), text)
			}
		})
	}
}

func TestStateKeepsMoreRoomThanNeeded(t *testing.T) {
	dir := stateOf(t)
	g := open(t, Options{Dir: dir, Targets: 200})
	if _, err := g.Target(TargetKey{Netns: testNetns, Port: testPort}, enforce(1), 0); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	log, text := logOf()
	g = open(t, Options{Dir: dir, Targets: 1, Log: log})
	if text.Len() > 0 || len(g.Targets()) != 1 {
		t.Errorf("%d targets, logged %q", len(g.Targets()), text)
	}
	if n := len(g.states.elements); n != 256 {
		t.Errorf("room for %d targets", n)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}

// State appears complete or not at all, and what a process that died had in
// the making goes.
func TestStateHalfMade(t *testing.T) {
	dir := stateOf(t)
	leftover := filepath.Join(dir, newPrefix+"4711", mapsName)
	if err := os.MkdirAll(leftover, 0o700); err != nil {
		t.Fatal(err)
	}
	pin(t, filepath.Join(leftover, "states"), nil)
	if _, err := openState(dir); !errors.Is(err, ErrForeign) {
		t.Errorf("without a mark: %v", err)
	}
	pin(t, filepath.Join(dir, markName), nil)

	s, err := openState(dir)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := loadHeadgate()
	if err != nil {
		t.Fatal(err)
	}
	spec.Maps["not.a.name"] = spec.Maps["states"] // a bpffs takes no dot
	if m, err := createMaps(s, spec, 64); err == nil {
		closeMaps(m)
		t.Error("a map was pinned under an impossible name")
	}
	mustNotExist(t, filepath.Dir(leftover))
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left beside the mark after a failure: %v, %v", left, err)
	}
	spec.Maps["states"].ValueSize = 0
	if m, err := createMaps(s, spec, 64); err == nil {
		closeMaps(m)
		t.Error("an impossible map was made")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left beside the mark after a failure: %v, %v", left, err)
	}
	if err := errors.Join(s.remove(), s.close()); err != nil {
		t.Error(err)
	}
	mustNotExist(t, dir)
}

// A BPF file system that others use too can hold our state, beside what they
// keep there and not in place of it.
func TestStateBesideOthers(t *testing.T) {
	for _, name := range []string{liveName, devicesName, newPrefix + "4711"} {
		t.Run(name, func(t *testing.T) {
			dir := stateOf(t)
			theirs := filepath.Join(dir, name, mapsName, layoutMap)
			if err := os.MkdirAll(filepath.Dir(theirs), 0o700); err != nil {
				t.Fatal(err)
			}
			pin(t, theirs, nil)
			defer os.RemoveAll(dir)
			check := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), name) {
					t.Errorf("%s: %v", what, err)
				}
			}
			_, err := Open(Options{Dir: dir})
			check("Open", err)
			check("CheckState", CheckState(dir))
			_, err = Cleanup(dir)
			check("Cleanup", err)
			if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
				t.Errorf("in the directory: %v, %v", left, err)
			}
			if _, err := os.Lstat(theirs); err != nil {
				t.Errorf("what others keep: %v", err)
			}
		})
	}
	t.Run("under other names", func(t *testing.T) {
		dir := stateOf(t)
		theirs := filepath.Join(dir, "new-and-theirs")
		if err := os.MkdirAll(theirs, 0o700); err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		for range 2 {
			if err := open(t, Options{Dir: dir}).Close(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Cleanup(dir); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != "new-and-theirs" {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}

func TestTargets(t *testing.T) {
	g := openForTest(t)
	if _, err := g.Target(TargetKey{Netns: maxCookie + 1, Port: 1}, Order{}, 0); err == nil {
		t.Error("a cookie that the key has no room for was taken")
	}
	for port := range 64 {
		if id, err := g.Target(TargetKey{Netns: testNetns, Port: uint16(port)}, Order{}, 0); err != nil || id != uint32(port) {
			t.Fatalf("target %d: %d, %v", port, id, err)
		}
	}
	if _, err := g.Target(TargetKey{Netns: testNetns, Port: 64}, Order{}, 0); !errors.Is(err, ErrFull) {
		t.Errorf("one more than there is room for: %v", err)
	}
	if err := g.Retire(TargetKey{Netns: 1, Port: 1}); err != nil {
		t.Errorf("retire an unknown one: %v", err)
	}
	if err := g.Retire(TargetKey{Netns: testNetns, Port: 7}); err != nil {
		t.Fatal(err)
	}
	if id, err := g.Target(TargetKey{Netns: testNetns, Port: 64}, Order{}, 0); err != nil || id != 7 {
		t.Errorf("in place of a retired one: %d, %v", id, err)
	}
}

// A target that is given up is open at once. Its number is free when nothing
// of it is in flight, and its counts are not the next one's.
func TestRetire(t *testing.T) {
	d := newDoorman(t)
	key := TargetKey{Netns: testNetns, Port: testPort}
	d.order(enforce(1))
	d.must(true, "198.51.100.1", 1)
	d.must(false, "198.51.100.1", 2)
	if err := d.gate.Retire(key); err != nil {
		t.Fatal(err)
	}
	d.must(true, "198.51.100.1", 2)
	if r := d.reading(); len(d.gate.Targets()) != 1 || r.InFlight != 2 {
		t.Errorf("with connections: targets %v, %+v", d.gate.Targets(), r)
	}
	d.order(enforce(2))
	d.must(false, "198.51.100.1", 3)

	d.expire(math.MaxInt)
	time.Sleep(120 * time.Millisecond)
	if err := errors.Join(d.gate.Sweep(), d.gate.Retire(key)); err != nil {
		t.Fatal(err)
	}
	if len(d.gate.Targets()) != 0 {
		t.Errorf("without: targets %v", d.gate.Targets())
	}
	d.must(true, "198.51.100.1", 4)
	d.order(enforce(1))
	if r := d.reading(); r != (Reading{}) {
		t.Errorf("begins with %+v", r)
	}
}

func TestCheck(t *testing.T) {
	lab.NeedRoot(t)
	able, err := Check()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []Capability{CanRelease, CanService, CanAdopt, CanSweep} {
		if !able[c] {
			t.Errorf("this kernel cannot do %s", c)
		}
	}
}
