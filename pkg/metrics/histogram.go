package metrics

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"headgate/pkg/rtt"
)

// bounds are the upper ends of the classic buckets, three to a power of ten.
var bounds = []float64{
	10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6,
	1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3,
	1, 2.5, 5, 10, 25, 50,
}

// schema of the native histogram: eight buckets to a power of two, each 9 %
// wide, where those of rtt.Histogram are 3 %.
const schema = 3

// Histogram adds up windows of latencies for good. It is wider than
// rtt.Histogram, whose counts last five days at 10,000 samples a second and
// whose sum lasts 40 hours at 65,536 units in flight. The zero value is empty
// and ready to use. It is not safe for concurrent use.
type Histogram struct {
	sum    float64 // seconds
	bucket rtt.Sparse[uint64]
}

// Add counts the samples of a window.
func (h *Histogram) Add(w *rtt.Histogram) {
	h.sum += w.Sum.Seconds()
	for i, n := range w.Bucket {
		h.bucket.Add(i, uint64(n))
	}
}

// Merge adds what another has counted.
func (h *Histogram) Merge(o *Histogram) {
	h.sum += o.sum
	o.bucket.Each(h.bucket.Add)
}

// Clone returns a copy that later additions leave alone.
func (h *Histogram) Clone() *Histogram {
	return &Histogram{sum: h.sum, bucket: h.bucket.Clone()}
}

// metric returns the histogram with classic and native buckets. A sample
// counts as the upper end of its bucket: no bucket holds a sample that is
// longer than it says, and one that is up to 3.1 % shorter may be missing.
func (h *Histogram) metric(desc *prometheus.Desc, labels ...string) (prometheus.Metric, error) {
	var count uint64
	native := map[int]int64{}
	classic := make([]*dto.Bucket, len(bounds))
	next := 0 // the first bound that is not reached
	reach := func(hi time.Duration) {
		for ; next < len(bounds) && hi > time.Duration(bounds[next]*1e9); next++ {
			classic[next] = &dto.Bucket{UpperBound: &bounds[next], CumulativeCount: new(count)}
		}
	}
	h.bucket.Each(func(i int, n uint64) {
		_, hi := rtt.Bounds(i)
		reach(hi)
		count += n
		native[nativeIndex(hi.Seconds())] += int64(n)
	})
	reach(math.MaxInt64)
	m, err := prometheus.NewConstNativeHistogram(desc, count, h.sum, native, nil, 0, schema,
		prometheus.DefNativeHistogramZeroThreshold, time.Time{}, labels...)
	return histogramMetric{m, classic}, err
}

// nativeIndex returns the native bucket of v > 0: that with the index i ends
// at 2^(i/8) and includes its end.
func nativeIndex(v float64) int {
	return int(math.Ceil(math.Log2(v) * (1 << schema)))
}

// histogramMetric gives a native histogram classic buckets as well.
type histogramMetric struct {
	prometheus.Metric
	classic []*dto.Bucket
}

func (m histogramMetric) Write(out *dto.Metric) error {
	if err := m.Metric.Write(out); err != nil {
		return err
	}
	out.Histogram.Bucket = m.classic
	out.Histogram.CreatedTimestamp = nil // it is not known
	return nil
}
