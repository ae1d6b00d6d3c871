package loader

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"

	"headgate/internal/lab"
)

// What is noted of a namespace can be read by who noted it. To whoever came in
// between it is no namespace: cookies have 48 bits in the key of a target.
func TestNetnsNoted(t *testing.T) {
	lab.NeedRoot(t)
	spec, err := loadUnits()
	if err != nil {
		t.Fatal(err)
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{unitsProgTestNetns: spec.Programs[unitsProgTestNetns]}
	if err := spec.Variables[unitsVarThisNetns].Set(uint64(testNetns)); err != nil {
		t.Fatal(err)
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	notes := make([]byte, 3*8)
	if answer, err := c.Programs[unitsProgTestNetns].Run(&ebpf.RunOptions{Context: notes, ContextOut: notes}); err != nil || answer != 0 {
		t.Fatalf("%d, %v", answer, err)
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(notes[8*i:]) }
	if word(0) != testNetns || word(1) != testNetns {
		t.Errorf("noted %#x, and read %#x; want %#x", word(0), word(1), testNetns)
	}
	if word(2)>>32 == 0 {
		t.Errorf("with another context it reads as %#x", word(2))
	}
}

// Where there is nothing to go on to, everything passes, and nothing is counted.
func TestLookupWithoutLead(t *testing.T) {
	d := newDoorman(t)
	d.order(enforce(0))
	d.must(false, "198.51.100.1", 1)
	if err := d.gate.maps[headgateMapLookups].Delete(uint32(0)); err != nil {
		t.Fatal(err)
	}
	d.must(true, "198.51.100.1", 2, 3)
	d.want("passed", Reading{Rejected: 1})
	if err := d.gate.lead(); err != nil {
		t.Fatal(err)
	}
	d.must(false, "198.51.100.1", 4)
	d.want("put back", Reading{Rejected: 2})
}
