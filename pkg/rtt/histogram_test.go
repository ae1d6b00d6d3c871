package rtt

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBucketsAreNarrowAndContiguous(t *testing.T) {
	var next time.Duration
	for i := range Buckets {
		lo, hi := Bounds(i)
		if lo != next {
			t.Fatalf("bucket %d begins at %v, the one before ends at %v", i, lo, next)
		}
		if lo >= 2048 && float64(hi-lo) > 0.0313*float64(lo) {
			t.Errorf("bucket %d [%v, %v) is %.1f %% wide", i, lo, hi, 100*float64(hi-lo)/float64(lo))
		}
		if got := Index(lo); got != i {
			t.Errorf("Index(%v) = %d, want %d", lo, got, i)
		}
		if got := Index(hi - 1); got != i {
			t.Errorf("Index(%v) = %d, want %d", hi-1, got, i)
		}
		next = hi
	}
	if got := Index(1<<62 - 1); got != Buckets-1 {
		t.Errorf("Index of the largest value = %d, want the last bucket %d", got, Buckets-1)
	}
}

func TestQuantileWithinABucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(2048, int64(100*time.Second)).Draw(t, "d"))
		var h Histogram
		for range 10 {
			h.Record(d)
		}
		if h.Mean() != d {
			t.Fatalf("mean of ten times %v is %v", d, h.Mean())
		}
		got := h.Quantile(0.5)
		if diff := float64(got-d) / float64(d); diff > 0.0313 || diff < -0.0313 {
			t.Fatalf("median of ten times %v is %v", d, got)
		}
	})
}

func TestReaderLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var total, window, seen Histogram
		// A bucket about to wrap must not disturb.
		total.Bucket[40] = 1<<32 - 2
		var r Reader
		r.Begin(&total)
		n := 0
		for range rapid.IntRange(1, 20).Draw(t, "windows") {
			for _, i := range rapid.SliceOf(rapid.SampledFrom([]int{0, 40, 41, Buckets - 1})).Draw(t, "samples") {
				total.Bucket[i]++
				n++
			}
			r.Next(&total, &window)
			for i, d := range window.Bucket {
				seen.Bucket[i] += d
			}
			seen.Count += window.Count
		}
		if seen.Count != uint64(n) {
			t.Fatalf("the windows hold %d samples of %d", seen.Count, n)
		}
		for i, d := range seen.Bucket {
			if want := total.Bucket[i]; i != 40 && d != want || i == 40 && d != want+2 {
				t.Fatalf("bucket %d: the windows hold %d of %d", i, d, want)
			}
		}
	})
}
