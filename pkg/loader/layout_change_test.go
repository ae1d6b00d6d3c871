package loader

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// A layout that changed in any way is another, and what is said of it names the
// field.
func TestLayoutChanges(t *testing.T) {
	word := &btf.Int{Name: "__u64", Size: 8}
	half := &btf.Int{Name: "__u32", Size: 4}
	of := func(members ...btf.Member) string {
		for i := range members {
			members[i].Offset = btf.Bits(64 * i)
		}
		return layout(&ebpf.MapSpec{Key: half, Value: &btf.Struct{Name: "s", Members: members}})
	}
	a, b := btf.Member{Name: "a", Type: word}, btf.Member{Name: "b", Type: &btf.Typedef{Name: "u", Type: word}}
	inner := btf.Member{Name: "in", Type: &btf.Array{Type: &btf.Struct{Members: []btf.Member{a}}, Nelems: 2}}
	before := of(a, b)
	for now, want := range map[string]string{
		of(a, b):                                 "",
		of(a):                                    "the field value.b is gone",
		of(inner, a, b):                          "the field value.in is new",
		of(btf.Member{Name: "c", Type: word}):    "the field value.c is new",
		of(b, a):                                 "the field value.b was 8 bytes at 8 and is 8 bytes at 0",
		of(btf.Member{Name: "a", Type: half}, b): "the field value.a was 8 bytes at 0 and is 4 bytes at 0",
	} {
		got := ""
		if err := compareLayouts(now, before); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("from\n%sto\n%sit says %q, want %q", before, now, got, want)
		}
	}
}
