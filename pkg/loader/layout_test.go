package loader

import (
	"fmt"
	"reflect"
	"structs"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"

	"headgate/pkg/rtt"
)

// objects are the compiled programs of every architecture.
var objects = []string{"headgate_x86_bpfel.o", "headgate_arm64_bpfel.o"}

func objectSpec(t *testing.T, file string) *ebpf.CollectionSpec {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec(file)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return spec
}

// shared are the types that the programs and this package read and write.
func shared() map[string]reflect.Type {
	return map[string]reflect.Type{
		"target_conf":      reflect.TypeFor[headgateTargetConf](),
		"target_state":     reflect.TypeFor[headgateTargetState](),
		"target_counters":  reflect.TypeFor[headgateTargetCounters](),
		"cohort":           reflect.TypeFor[headgateCohort](),
		"histogram":        reflect.TypeFor[headgateHistogram](),
		"pending_key":      reflect.TypeFor[headgatePendingKey](),
		"pending":          reflect.TypeFor[headgatePending](),
		"hold":             reflect.TypeFor[headgateHold](),
		"claimed":          reflect.TypeFor[headgateClaimed](),
		"port":             reflect.TypeFor[headgatePort](),
		"flood":            reflect.TypeFor[headgateFlood](),
		"address":          reflect.TypeFor[headgateAddress](),
		"acquaintance":     reflect.TypeFor[headgateAcquaintance](),
		"conn":             reflect.TypeFor[headgateConn](),
		"event":            reflect.TypeFor[headgateEvent](),
		"tally":            reflect.TypeFor[headgateTally](),
		"correction":       reflect.TypeFor[headgateCorrection](),
		"party_correction": reflect.TypeFor[headgatePartyCorrection](),
		"policy":           reflect.TypeFor[headgatePolicy](),
		"source_key":       reflect.TypeFor[headgateSourceKey](),
		"source":           reflect.TypeFor[headgateSource](),
		"parts":            reflect.TypeFor[headgateParts](),
	}
}

func TestLayout(t *testing.T) {
	for _, file := range objects {
		spec := objectSpec(t, file)
		for name, goType := range shared() {
			t.Run(file+"/"+name, func(t *testing.T) {
				var c *btf.Struct
				if err := spec.Types.TypeByName(name, &c); err != nil {
					t.Fatal(err)
				}
				compareLayout(t, c, goType)
			})
		}
	}
}

func compareLayout(t *testing.T, c *btf.Struct, goType reflect.Type) {
	t.Helper()
	if uintptr(c.Size) != goType.Size() {
		t.Errorf("%d bytes in C, %d in Go", c.Size, goType.Size())
	}
	var fields []reflect.StructField
	for i := range goType.NumField() {
		if f := goType.Field(i); f.Type != reflect.TypeFor[structs.HostLayout]() {
			fields = append(fields, f)
		}
	}
	if len(c.Members) != len(fields) {
		t.Fatalf("%d members in C, %d in Go", len(c.Members), len(fields))
	}
	end := uint32(0)
	for i, m := range c.Members {
		f := fields[i]
		size, err := btf.Sizeof(m.Type)
		if err != nil {
			t.Fatal(err)
		}
		if m.BitfieldSize != 0 {
			t.Errorf("%s is a bit field", m.Name)
		}
		if at := m.Offset.Bytes(); at != end {
			t.Errorf("there is a hole of %d bytes before %s", at-end, m.Name)
		}
		if uintptr(m.Offset.Bytes()) != f.Offset || uintptr(size) != f.Type.Size() {
			t.Errorf("%s: %d bytes at %d in C, %d at %d in Go (%s)",
				m.Name, size, m.Offset.Bytes(), f.Type.Size(), f.Offset, f.Name)
		}
		end = m.Offset.Bytes() + uint32(size)
	}
	if end != c.Size {
		t.Errorf("the last %d bytes belong to no member", c.Size-end)
	}
}

// Whatever a map holds is one of the shared types, or a plain number.
func TestMapsHoldSharedTypes(t *testing.T) {
	spec := objectSpec(t, objects[0])
	for _, name := range mapNames(spec) {
		m := spec.Maps[name]
		for what, at := range map[string]btf.Type{"key": m.Key, "value": m.Value} {
			if at == nil && m.Type == ebpf.RingBuf {
				continue // its events are read field by field
			}
			switch inner := btf.UnderlyingType(at).(type) {
			case *btf.Int:
			case *btf.Struct:
				if shared()[inner.Name] == nil {
					t.Errorf("map %s: the layout of its %s, struct %s, is not tested", name, what, inner.Name)
				}
			default:
				t.Errorf("map %s: its %s is a %T", name, what, inner)
			}
		}
	}
}

// The histogram's size is known in C, in the types that are generated from it,
// and in pkg/rtt.
func TestHistogramSize(t *testing.T) {
	if n := len(headgateHistogram{}.Bucket); n != rtt.Buckets {
		t.Errorf("%d buckets in C, %d in pkg/rtt", n, rtt.Buckets)
	}
}

// What is tested on one architecture is what runs on the other.
func TestArchitecturesRunTheSameCode(t *testing.T) {
	first, second := objectSpec(t, objects[0]), objectSpec(t, objects[1])
	if len(first.Programs) == 0 || len(first.Programs) != len(second.Programs) {
		t.Fatalf("%d and %d programs", len(first.Programs), len(second.Programs))
	}
	for name, p := range first.Programs {
		q := second.Programs[name]
		if q == nil {
			t.Errorf("program %s is in one object only", name)
			continue
		}
		if p.Type != q.Type || p.AttachType != q.AttachType {
			t.Errorf("program %s: %v/%v and %v/%v", name, p.Type, p.AttachType, q.Type, q.AttachType)
		}
		if a, b := fmt.Sprint(p.Instructions), fmt.Sprint(q.Instructions); a != b {
			t.Errorf("program %s:\n%s", name, cmp.Diff(a, b))
		}
	}
}
