package loader

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// layoutMap says of each map beside it, by name, what its keys and values are
// made of. C knows nothing of it.
const layoutMap = "layout"

const (
	layoutNameLen = 16   // as the kernel's own names of maps, and longer than any
	layoutTextLen = 4096 // a quarter of it is used by the largest
)

// layout describes the keys and values of a map, a line for each field. It
// changes whenever one is added, removed, moved or renamed, or changes its type.
func layout(m *ebpf.MapSpec) string {
	var b strings.Builder
	describe(&b, "key", m.Key, 0)
	describe(&b, "value", m.Value, 0)
	return b.String()
}

func describe(b *strings.Builder, path string, t btf.Type, offset uint32) {
	switch t := btf.UnderlyingType(t).(type) {
	case nil, *btf.Void: // a ring buffer's events are told apart by their size
	case *btf.Struct:
		for _, m := range t.Members {
			describe(b, path+"."+m.Name, m.Type, offset+m.Offset.Bytes())
		}
	case *btf.Array:
		if inner, ok := btf.UnderlyingType(t.Type).(*btf.Int); ok {
			fmt.Fprintf(b, "%s: %s[%d] at %d\n", path, inner.Name, t.Nelems, offset)
			return
		}
		size, _ := btf.Sizeof(t.Type)
		fmt.Fprintf(b, "%s: %d of %d bytes at %d\n", path, t.Nelems, size, offset)
		describe(b, path+"[0]", t.Type, offset) // all are alike
	default:
		size, _ := btf.Sizeof(t)
		fmt.Fprintf(b, "%s: %d bytes at %d\n", path, size, offset)
	}
}

// newLayout makes the map of that name for the maps of a spec.
func newLayout(spec *ebpf.CollectionSpec) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: layoutMap, Type: ebpf.Hash, KeySize: layoutNameLen, ValueSize: layoutTextLen, MaxEntries: 64,
	})
	if err != nil {
		return nil, fmt.Errorf("create map %s: %w", layoutMap, err)
	}
	for _, name := range mapNames(spec) {
		var key [layoutNameLen]byte
		var text [layoutTextLen]byte
		if copy(key[:], name) < len(name) || copy(text[:], layout(spec.Maps[name])) == layoutTextLen {
			m.Close()
			return nil, fmt.Errorf("map %s: there is no room to say what map %s contains", layoutMap, name)
		}
		if err := m.Put(key, text); err != nil {
			m.Close()
			return nil, fmt.Errorf("map %s: %w", layoutMap, err)
		}
	}
	return m, nil
}

// layouts reads what the maps of a predecessor contain.
func layouts(s *stateDir) (map[string]string, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(s.maps(), layoutMap), nil)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", layoutMap, err)
	}
	defer m.Close()
	if m.KeySize() != layoutNameLen || m.ValueSize() != layoutTextLen {
		return nil, fmt.Errorf("map %s: it is of another version", layoutMap)
	}
	all := make(map[string]string)
	var key [layoutNameLen]byte
	var text [layoutTextLen]byte
	for it := m.Iterate(); ; {
		if !it.Next(&key, &text) {
			if err := it.Err(); err != nil {
				return nil, fmt.Errorf("map %s: %w", layoutMap, err)
			}
			return all, nil
		}
		all[cstring(key[:])] = cstring(text[:])
	}
}

func cstring(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

// compareLayouts returns nil or what differs: a field more or less, for that
// moves others, and else the first that is not the same.
func compareLayouts(ours, theirs string) error {
	if ours == theirs {
		return nil
	}
	new, old := fieldsOf(ours), fieldsOf(theirs)
	for field := range strings.Lines(ours) {
		name, _, _ := strings.Cut(field, ":")
		if _, known := old[name]; !known {
			return fmt.Errorf("the field %s is new", name)
		}
	}
	for field := range strings.Lines(theirs) {
		name, _, _ := strings.Cut(field, ":")
		if _, known := new[name]; !known {
			return fmt.Errorf("the field %s is gone", name)
		}
	}
	for field := range strings.Lines(ours) {
		name, now, _ := strings.Cut(field, ":")
		if was := old[name]; was != now {
			return fmt.Errorf("the field %s was%s and is%s", name, strings.TrimSuffix(was, "\n"), strings.TrimSuffix(now, "\n"))
		}
	}
	return errors.New("the fields are in another order")
}

func fieldsOf(layout string) map[string]string {
	all := make(map[string]string)
	for field := range strings.Lines(layout) {
		name, rest, _ := strings.Cut(field, ":")
		all[name] = rest
	}
	return all
}
