// Package rtt turns the kernel's cumulative latency histograms into windows
// of samples.
package rtt

import (
	"math/bits"
	"time"
)

// The layout of a histogram, shared with bpf/hist.h: values are counted in
// units of 64 ns; the first 32 buckets are one unit wide, and each further
// power of two is split into 32 buckets, so that a bucket is at most 1/32
// (3.1 %) as wide as the values in it. The last bucket begins at 135 s and
// takes everything above.
const (
	unitShift = 6
	subBits   = 5
	subCount  = 1 << subBits
	maxUnits  = 1<<31 - 1

	// Buckets is the number of buckets of a histogram.
	Buckets = (31 - subBits + 1) * subCount
)

// Histogram counts latencies, log-linear: no bucket is wider than 3.1 % of
// its values from 2 us up. The zero value is empty and ready to use.
type Histogram struct {
	Count  uint64
	Sum    time.Duration // exact, not from the buckets
	Bucket [Buckets]uint32
}

// Index returns the bucket that counts d. Negative values count as zero,
// values beyond the range in the last bucket.
func Index(d time.Duration) int {
	if d < 0 {
		return 0
	}
	v := min(uint64(d)>>unitShift, maxUnits)
	if v < subCount {
		return int(v)
	}
	e := bits.Len64(v) - 1 - subBits
	return e<<subBits + int(v>>e)
}

// Bounds returns the half-open range [lo, hi) of latencies that bucket i counts.
func Bounds(i int) (lo, hi time.Duration) {
	if i < subCount {
		return time.Duration(i) << unitShift, time.Duration(i+1) << unitShift
	}
	e := i>>subBits - 1
	m := i&(subCount-1) + subCount
	return time.Duration(m<<e) << unitShift, time.Duration((m+1)<<e) << unitShift
}

// Record counts d once.
func (h *Histogram) Record(d time.Duration) {
	h.Count++
	h.Sum += max(d, 0)
	h.Bucket[Index(d)]++
}

// Mean returns the exact mean, or 0 when the histogram is empty.
func (h *Histogram) Mean() time.Duration {
	if h.Count == 0 {
		return 0
	}
	return h.Sum / time.Duration(h.Count)
}

// Quantile returns an upper estimate of the q-quantile, 0 <= q <= 1, by linear
// interpolation inside its bucket; 0 when the histogram is empty.
func (h *Histogram) Quantile(q float64) time.Duration {
	var total uint64
	for _, n := range h.Bucket {
		total += uint64(n)
	}
	if total == 0 {
		return 0
	}
	rank := min(max(q, 0), 1) * float64(total)
	var seen float64
	for i, n := range h.Bucket {
		if n == 0 {
			continue
		}
		if seen+float64(n) >= rank {
			lo, hi := Bounds(i)
			return lo + time.Duration((rank-seen)/float64(n)*float64(hi-lo))
		}
		seen += float64(n)
	}
	return 0
}
