package loader

import (
	"math"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"pgregory.net/rapid"

	"headgate/internal/lab"
	"headgate/pkg/rtt"
)

// units loads the programs that run single functions of the product's.
func units(t *testing.T) *ebpf.Collection {
	t.Helper()
	lab.NeedRoot(t)
	spec, err := loadUnits()
	if err != nil {
		t.Fatal(err)
	}
	cpus := uint32(ebpf.MustPossibleCPU())
	if err := spec.Variables[unitsVarCpus].Set(cpus); err != nil {
		t.Fatal(err)
	}
	spec.Maps[unitsMapCounters].MaxEntries *= cpus
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatalf("load the test programs: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// The histogram's arithmetic in C is that of pkg/rtt.
func TestHistIndex(t *testing.T) {
	p := units(t).Programs[unitsProgTestHistIndex]
	same := func(t interface {
		Fatalf(string, ...any)
	}, d time.Duration) {
		got, err := p.Run(&ebpf.RunOptions{Context: uint64(d)})
		if err != nil {
			t.Fatalf("run: %v", err)
		}
		if want := rtt.Index(d); int(got) != want {
			t.Fatalf("%d ns: bucket %d in C, %d in Go", d, got, want)
		}
	}
	for i := range rtt.Buckets {
		lo, hi := rtt.Bounds(i)
		for _, d := range []time.Duration{lo - 1, lo, lo + 1, hi - 1, hi} {
			if d >= 0 {
				same(t, d)
			}
		}
	}
	same(t, math.MaxInt64)
	rapid.Check(t, func(t *rapid.T) {
		// As many short ones as long ones.
		bits := rapid.IntRange(0, 63).Draw(t, "bits")
		d := rapid.Int64Range(0, math.MaxInt64>>(63-bits)).Draw(t, "ns")
		same(t, time.Duration(d))
	})
}
