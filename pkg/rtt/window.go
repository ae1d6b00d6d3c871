package rtt

import "time"

// Reader takes windows out of a cumulative histogram: what was counted since
// the last one. The kernel never resets its counts, so no sample is lost
// between two readings, and the 32 bits of a bucket may wrap. The zero value
// begins at an empty histogram.
type Reader struct {
	last [Buckets]uint32
}

// Begin makes total the start of the next window.
func (r *Reader) Begin(total *Histogram) { r.last = total.Bucket }

// Next sets window to what was counted between the last call and total. Its
// Sum is estimated from the middles of the buckets.
func (r *Reader) Next(total, window *Histogram) {
	window.Count, window.Sum = 0, 0
	for i, n := range total.Bucket {
		d := n - r.last[i]
		window.Bucket[i] = d
		if d == 0 {
			continue
		}
		lo, hi := Bounds(i)
		window.Count += uint64(d)
		window.Sum += (lo + hi) / 2 * time.Duration(d)
	}
	r.last = total.Bucket
}
