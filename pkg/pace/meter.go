package pace

import "time"

// meter counts passes in buckets of equal width, the last few of them.
type meter struct {
	width   time.Duration
	buckets []bucket
}

type bucket struct {
	number int64 // start over width
	passes int64
}

func newMeter(width time.Duration, buckets int) meter {
	return meter{width: width, buckets: make([]bucket, buckets)}
}

// add counts n passes at a time. One that is older than what the bucket holds
// by now is forgotten.
func (m *meter) add(at time.Duration, n int) {
	number := int64(max(at, 0) / m.width)
	b := &m.buckets[number%int64(len(m.buckets))]
	if b.number < number {
		*b = bucket{number: number}
	}
	if b.number == number {
		b.passes += int64(n)
	}
}

// back returns the passes of the bucket that is so many before the one of now.
func (m *meter) back(now time.Duration, buckets int64) int64 {
	number := int64(max(now, 0)/m.width) - buckets
	if number < 0 {
		return 0
	}
	if b := m.buckets[number%int64(len(m.buckets))]; b.number == number {
		return b.passes
	}
	return 0
}

// half is the resolution of the current rate: half a second.
const half = 500 * time.Millisecond

// lately returns the passes of the current half second and the one before.
func (m *meter) lately(now time.Duration) int64 {
	return m.back(now, 0) + m.back(now, 1)
}
