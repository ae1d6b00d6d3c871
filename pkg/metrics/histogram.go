package metrics

import "headgate/pkg/rtt"

// Histogram adds up windows of latencies for good. It is wider than
// rtt.Histogram, whose counts last five days at 10,000 samples a second and
// whose sum lasts 40 hours at 65,536 units in flight. The zero value is empty
// and ready to use. It is not safe for concurrent use.
type Histogram struct {
	count  uint64
	sum    float64 // seconds
	bucket [rtt.Buckets]uint64
}

// Add counts the samples of a window.
func (h *Histogram) Add(w *rtt.Histogram) {
	h.count += w.Count
	h.sum += w.Sum.Seconds()
	for i, n := range w.Bucket {
		h.bucket[i] += uint64(n)
	}
}

// Clone returns a copy that later additions leave alone.
func (h *Histogram) Clone() *Histogram {
	c := *h
	return &c
}
