package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
)

// sizes are the numbers of elements that depend on the configuration.
func sizes(targets uint32) map[string]uint32 {
	return map[string]uint32{
		headgateMapPorts:      targets * portsPerTarget,
		headgateMapConfs:      targets,
		headgateMapStates:     targets,
		headgateMapCohorts:    targets,
		headgateMapFloods:     targets,
		headgateMapCounters:   targets * uint32(ebpf.MustPossibleCPU()),
		headgateMapTallies:    targets,
		headgateMapHistograms: targets * uint32(headgateSignalSIGNALS),
		headgateMapPolicies:   targets,
		headgateMapClasses:    targets,
	}
}

// openMaps opens the pinned maps of a predecessor, or makes new ones when
// there are none (fresh) or when they are not what these programs work with.
func openMaps(s *stateDir, spec *ebpf.CollectionSpec, least, made uint32, log *slog.Logger) (maps map[string]*ebpf.Map, fresh bool, err error) {
	maps, err = adoptMaps(s, spec, least)
	if err == nil {
		return maps, false, nil
	}
	if _, none := os.Lstat(s.live()); !errors.Is(none, fs.ErrNotExist) {
		log.Warn("the state of an earlier agent cannot be taken over; counting anew from live connections", "reason", err)
	}
	maps, err = createMaps(s, spec, made)
	return maps, true, err
}

func adoptMaps(s *stateDir, spec *ebpf.CollectionSpec, targets uint32) (_ map[string]*ebpf.Map, err error) {
	theirs, err := layouts(s)
	if err != nil {
		return nil, err
	}
	maps := make(map[string]*ebpf.Map)
	defer func() {
		if err != nil {
			closeMaps(maps)
		}
	}()
	need := sizes(targets)
	for _, name := range mapNames(spec) {
		if theirs, known := theirs[name]; known {
			if err := compareLayouts(layout(spec.Maps[name]), theirs); err != nil {
				return nil, fmt.Errorf("map %s: %w", name, err)
			}
		}
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
	layout, err := newLayout(spec)
	if err != nil {
		return nil, err
	}
	defer layout.Close()
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
