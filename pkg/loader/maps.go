package loader

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/cilium/ebpf"
)

// layoutMap holds, in its only element, a hash of what the maps beside it
// contain. C knows nothing of it.
const layoutMap = "layout"

// sizes are the numbers of elements that depend on the configuration.
func sizes(targets uint32) map[string]uint32 {
	return map[string]uint32{
		headgateMapPorts:      targets * portsPerTarget,
		headgateMapConfs:      targets,
		headgateMapStates:     targets,
		headgateMapCohorts:    targets,
		headgateMapCounters:   targets,
		headgateMapTallies:    targets,
		headgateMapHistograms: targets * uint32(headgateSignalSIGNALS),
	}
}

// layoutHash changes whenever a value or key of a map changes its type, the
// order or the names of its fields, even when its size stays.
func layoutHash() uint64 {
	h := sha256.New()
	for _, v := range []any{
		headgateTargetConf{}, headgateTargetState{}, headgateCohort{}, headgateTargetCounters{},
		headgateHistogram{}, headgatePendingKey{}, headgatePending{}, headgateHold{}, headgateClaimed{}, headgatePort{}, headgateConn{}, headgateEvent{}, headgateTally{},
	} {
		t := reflect.TypeOf(v)
		for i := range t.NumField() {
			f := t.Field(i)
			fmt.Fprintf(h, "%s.%s %s %d\n", t.Name(), f.Name, f.Type, f.Offset)
		}
	}
	return binary.LittleEndian.Uint64(h.Sum(nil))
}

// openMaps opens the pinned maps of a predecessor, or makes new ones when
// there are none (fresh) or when they are not what these programs work with.
func openMaps(s *stateDir, spec *ebpf.CollectionSpec, targets uint32, log *slog.Logger) (maps map[string]*ebpf.Map, fresh bool, err error) {
	maps, err = adoptMaps(s, spec, targets)
	if err == nil {
		return maps, false, nil
	}
	if _, none := os.Lstat(s.live()); !errors.Is(none, fs.ErrNotExist) {
		log.Warn("the state of an earlier agent cannot be taken over; counting anew from live connections", "reason", err)
	}
	if err := s.removeLive(); err != nil {
		return nil, false, err
	}
	maps, err = createMaps(s, spec, targets)
	return maps, true, err
}

func adoptMaps(s *stateDir, spec *ebpf.CollectionSpec, targets uint32) (_ map[string]*ebpf.Map, err error) {
	layout, err := ebpf.LoadPinnedMap(filepath.Join(s.maps(), layoutMap), nil)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", layoutMap, err)
	}
	defer layout.Close()

	maps := make(map[string]*ebpf.Map)
	defer func() {
		if err != nil {
			closeMaps(maps)
		}
	}()
	need := sizes(targets)
	for _, name := range mapNames(spec) {
		m, err := ebpf.LoadPinnedMap(filepath.Join(s.maps(), name), nil)
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", name, err)
		}
		maps[name] = m
		want := spec.Maps[name].Copy()
		if n, ok := need[name]; ok {
			if m.MaxEntries() < n {
				return nil, fmt.Errorf("map %s: it has room for %d elements, %d are needed", name, m.MaxEntries(), n)
			}
			want.MaxEntries = m.MaxEntries()
		}
		if err := want.Compatible(m); err != nil {
			return nil, fmt.Errorf("map %s: %w", name, err)
		}
	}
	var hash uint64
	if err := layout.Lookup(uint32(0), &hash); err != nil {
		return nil, fmt.Errorf("map %s: %w", layoutMap, err)
	}
	if hash != layoutHash() {
		return nil, errors.New("the layout of the maps' values has changed")
	}
	return maps, nil
}

func createMaps(s *stateDir, spec *ebpf.CollectionSpec, targets uint32) (_ map[string]*ebpf.Map, err error) {
	maps := make(map[string]*ebpf.Map)
	defer func() {
		if err != nil {
			closeMaps(maps)
		}
	}()
	size := sizes(targets)
	for _, name := range mapNames(spec) {
		ms := spec.Maps[name].Copy()
		if n, ok := size[name]; ok {
			ms.MaxEntries = n
		}
		m, err := ebpf.NewMap(ms)
		if err != nil {
			return nil, fmt.Errorf("create map %s: %w", name, err)
		}
		maps[name] = m
	}
	layout, err := ebpf.NewMap(&ebpf.MapSpec{Name: layoutMap, Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("create map %s: %w", layoutMap, err)
	}
	defer layout.Close()
	if err := layout.Put(uint32(0), layoutHash()); err != nil {
		return nil, fmt.Errorf("map %s: %w", layoutMap, err)
	}
	err = s.create(func(dir string) error {
		for name, m := range maps {
			if err := m.Pin(filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("pin map %s: %w", name, err)
			}
		}
		return layout.Pin(filepath.Join(dir, layoutMap))
	})
	return maps, err
}

// mapNames are the maps that all programs share: not the constants, of which
// each copy of a program has its own.
func mapNames(spec *ebpf.CollectionSpec) []string {
	var names []string
	for name := range spec.Maps {
		if name != ".rodata" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func closeMaps(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		m.Close()
	}
}
