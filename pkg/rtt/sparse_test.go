package rtt

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// What is held sparsely is what a whole array would hold.
func TestSparseAgainstArray(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Sparse[uint64]
		var want, copied [Buckets]uint64
		add := func() {
			for _, i := range rapid.SliceOf(rapid.IntRange(0, Buckets-1)).Draw(t, "buckets") {
				n := rapid.SampledFrom([]uint64{0, 1, 1 << 40}).Draw(t, "n")
				s.Add(i, n)
				want[i] += n
			}
		}
		add()
		c := s.Clone()
		copied = want
		add()
		for what, x := range map[string]struct {
			s    *Sparse[uint64]
			want [Buckets]uint64
		}{"original": {&s, want}, "copy": {&c, copied}} {
			var got [Buckets]uint64
			last := -1
			x.s.Each(func(i int, n uint64) {
				if i <= last || n == 0 {
					t.Fatalf("%s: bucket %d with %d after bucket %d", what, i, n, last)
				}
				got[i], last = n, i
			})
			if d := cmp.Diff(x.want, got); d != "" {
				t.Fatalf("%s: %s", what, d)
			}
		}
	})
}

// A reader that looks at a histogram in which nothing moves takes no memory.
func TestNothingTakesNoMemory(t *testing.T) {
	var total, window Histogram
	var r Reader
	var s Sparse[uint64]
	if n := testing.AllocsPerRun(10, func() {
		r.Next(&total, &window)
		s.Add(7, 0)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
