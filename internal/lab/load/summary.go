package load

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Counts is how many requests ended how.
type Counts struct {
	Arrived  uint64 `json:"arrived"` // the sum of the others
	Answered uint64 `json:"answered"`
	Refused  uint64 `json:"refused"`
	Reset    uint64 `json:"reset"`
	TimedOut uint64 `json:"timed_out"`
	Failed   uint64 `json:"failed"`
	Unsent   uint64 `json:"unsent"`
}

func (c *Counts) add(o Outcome) {
	c.Arrived++
	switch o {
	case Answered:
		c.Answered++
	case Refused:
		c.Refused++
	case Reset:
		c.Reset++
	case TimedOut:
		c.TimedOut++
	case Failed:
		c.Failed++
	default:
		c.Unsent++
	}
}

// Summary is what the requests of a stretch of time got.
type Summary struct {
	Counts

	// Seconds is the length of the stretch.
	Seconds float64 `json:"seconds"`

	// Good counts the answers within the bound that Summarize was given.
	Good uint64 `json:"good"`

	// Latencies of the answered requests, in seconds; 0 when there are none.
	P50Seconds float64 `json:"p50_seconds"`
	P99Seconds float64 `json:"p99_seconds"`
	MaxSeconds float64 `json:"max_seconds"`
}

// Offered is the rate of arrivals per second.
func (s Summary) Offered() float64 { return s.rate(s.Arrived) }

// Goodput is the rate per second of requests that were answered in time.
func (s Summary) Goodput() float64 { return s.rate(s.Good) }

func (s Summary) rate(n uint64) float64 {
	if s.Seconds <= 0 {
		return 0
	}
	return float64(n) / s.Seconds
}

// Recorder keeps results. It is safe for concurrent use; its zero value is
// ready.
type Recorder struct {
	mu      sync.Mutex
	results []Result
	counts  Counts
}

// Record is a report function for Run.
func (r *Recorder) Record(res Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, res)
	r.counts.add(res.Outcome)
}

// Counts returns what has ended until now.
func (r *Recorder) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}

// Summarize looks at the requests that arrived in [from, to) and have ended.
// An answer is good when it came within the given time of the arrival.
func (r *Recorder) Summarize(from, to, within time.Duration) Summary {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Summary{Seconds: (to - from).Seconds()}
	var answered []time.Duration
	for _, res := range r.results {
		if res.At < from || res.At >= to {
			continue
		}
		s.add(res.Outcome)
		if res.Outcome != Answered {
			continue
		}
		answered = append(answered, res.Latency)
		if res.Latency <= within {
			s.Good++
		}
	}
	slices.Sort(answered)
	s.P50Seconds = quantile(answered, 0.50).Seconds()
	s.P99Seconds = quantile(answered, 0.99).Seconds()
	s.MaxSeconds = quantile(answered, 1).Seconds()
	return s
}

// quantile returns the smallest of the sorted values that at least the part q
// of them does not exceed (nearest rank), 0 for none.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}
