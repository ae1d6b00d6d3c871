package rtt

import "time"

// Reader takes windows out of a cumulative histogram: what was counted since
// the last one. The kernel never resets its counts, so no sample is lost
// between two readings, and the 32 bits of a bucket may wrap. The zero value
// begins at an empty histogram.
type Reader struct {
	last Sparse[uint32]
}

// Begin makes total the start of the next window.
func (r *Reader) Begin(total *Histogram) {
	var unused Histogram
	r.Next(total, &unused)
}

// Next sets window to what was counted between the last call and total. Its
// Sum is estimated from the middles of the buckets.
func (r *Reader) Next(total, window *Histogram) {
	*window = Histogram{}
	for g := range groups {
		first := g * subCount
		now := (*[subCount]uint32)(total.Bucket[first:])
		if *now == r.last.read(g) {
			continue
		}
		last := r.last.grow(g)
		for i, n := range now {
			d := n - last[i]
			if d == 0 {
				continue
			}
			window.Bucket[first+i] = d
			lo, hi := Bounds(first + i)
			window.Count += uint64(d)
			window.Sum += (lo + hi) / 2 * time.Duration(d)
		}
		*last = *now
	}
}
