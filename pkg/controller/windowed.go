package controller

import (
	"fmt"
	"math"
	"slices"
	"time"

	"headgate/pkg/rtt"
)

// FewSamples says what becomes of a window with too few samples.
type FewSamples string

// SampleWindow says which number stands for a window.
type SampleWindow string

const (
	Weigh FewSamples = "weigh"
	Drop  FewSamples = "drop"

	Average    SampleWindow = "average"
	Percentile SampleWindow = "percentile"
)

func (f FewSamples) check() error {
	if f != Weigh && f != Drop {
		return fmt.Errorf("%q is neither weigh nor drop", string(f))
	}
	return nil
}

func (w SampleWindow) check() error {
	if w != Average && w != Percentile {
		return fmt.Errorf("%q is neither average nor percentile", string(w))
	}
	return nil
}

// longestExtension is how long a window may wait for its samples.
const longestExtension = time.Second

// Windowed gathers ticks into windows and lets an algorithm take one step a
// window.
//
// A window lasts twice the shortest RTT of the window before, within
// min_window and max_window. The first tick only starts the clock: nobody
// knows how long its samples took to gather.
type Windowed struct {
	stepper  Stepper
	min, max int

	shortest, longest time.Duration // of a window
	size              int           // samples of a full window
	few               FewSamples
	percentile        float64 // 0: average
	threshold         time.Duration
	warmUp            time.Duration

	started bool
	born    time.Duration // first tick
	begun   time.Duration // of the current window
	last    time.Duration // tick
	length  time.Duration // that the current window is to have

	count    uint64
	sum      time.Duration
	fastest  time.Duration
	inFlight int
	dropped  bool
	hist     *rtt.Histogram  // for a percentile of ticks that have one
	single   []time.Duration // for a percentile of ticks that have none

	passed uint64
	sample Sample // the last passed on
	reason Reason // of the last change
}

// frame is what an algorithm sets for its windows.
type frame struct {
	min, max int           // bounds of the limit
	shortest time.Duration // default of min_window
	longest  time.Duration // default of max_window
	warmUp   time.Duration // default of warm_up
}

// windowed resolves the settings of the windows around a Stepper.
func (s *settings) windowed(p Params, c Stepper, def frame) *Windowed {
	w := &Windowed{
		stepper:   c,
		min:       def.min,
		max:       def.max,
		size:      number(s, "window_size", p.WindowSize, 10, 1, 1e6),
		few:       word(s, "few_samples", p.FewSamples, Weigh),
		threshold: number(s, "min_rtt_threshold", p.MinRTTThreshold, 0, 0, time.Hour),
		warmUp:    number(s, "warm_up", p.WarmUp, def.warmUp, 0, time.Hour),
	}
	w.shortest = number(s, "min_window", p.MinWindow, def.shortest, time.Millisecond, time.Hour)
	w.longest = number(s, "max_window", p.MaxWindow, max(def.longest, w.shortest), time.Millisecond, time.Hour)
	if w.longest < w.shortest {
		if p.MinWindow != nil {
			s.fail("max_window", "%v is less than min_window (%v)", w.longest, w.shortest)
		}
		w.shortest = w.longest
	}
	if word(s, "sample_window", p.SampleWindow, Average) == Average {
		s.only("percentile", p.Percentile != nil, "sample_window: percentile")
		s.only("percentile_capacity", p.PercentileCapacity != nil, "sample_window: percentile")
	} else {
		w.percentile = s.share("percentile", p.Percentile, 0.9)
		w.hist = new(rtt.Histogram)
		w.single = make([]time.Duration, 0, number(s, "percentile_capacity", p.PercentileCapacity, 1000, 1, 1e6))
	}
	w.restart(0)
	return w
}

// Decide implements [Algorithm].
func (w *Windowed) Decide(t Tick) Decision {
	if s, ok := w.gather(&t); ok {
		before := w.limit()
		w.sample = s
		w.passed++
		w.stepper.OnSample(s)
		if now := w.limit(); now != before {
			w.reason = w.why(now > before)
		}
	}
	return Decision{Limit: w.limit(), AfterRefusal: w.limit(), Reason: w.reason}
}

func (w *Windowed) limit() int { return min(max(w.stepper.Limit(), w.min), w.max) }

// why says why the limit was moved by the last step.
func (w *Windowed) why(up bool) Reason {
	own, has := w.stepper.(interface{ special() Reason })
	switch {
	case has && own.special() != ReasonNone:
		return own.special()
	case up:
		return ReasonGrowth
	case w.sample.Dropped:
		return ReasonDropped
	}
	return ReasonGradient
}

// LastSample returns the sample that the last window passed on, and how many
// windows passed one on so far.
func (w *Windowed) LastSample() (Sample, uint64) { return w.sample, w.passed }

// gather takes in a tick and returns a sample when a window is complete.
func (w *Windowed) gather(t *Tick) (Sample, bool) {
	counted := w.add(t)
	step := t.Now - w.last
	w.last = t.Now
	if !w.started || step < 0 { // a clock that went back starts anew
		if !w.started {
			w.born = t.Now
		}
		w.started = counted || w.few == Weigh
		w.restart(t.Now)
		return Sample{}, false
	}
	elapsed := t.Now - w.begun
	full := w.count >= uint64(w.size)
	if w.few == Drop {
		// As the reference: only a sample ends a window, and only after the
		// end of its time.
		if !counted || elapsed <= w.length {
			return Sample{}, false
		}
	} else {
		// The end of a window is the tick that is nearest to it.
		near := elapsed + step/2
		if near < w.length || !full && near < longestExtension {
			return Sample{}, false
		}
	}
	if w.count == 0 || w.few == Drop && !full {
		w.restart(t.Now)
		return Sample{}, false
	}
	s := Sample{
		RTT:      w.statistic(),
		InFlight: w.inFlight,
		Dropped:  w.dropped,
		Count:    w.count,
		Span:     elapsed,
		Weight:   min(1, float64(w.count)/float64(w.size)),
		Warming:  t.Now-w.born < w.warmUp,
	}
	w.restart(t.Now)
	return s, true
}

// add counts a tick into the window. It reports whether the tick held a
// sample at or above the threshold.
func (w *Windowed) add(t *Tick) bool {
	n, sum, fastest := t.Samples, max(t.Sum, 0), time.Duration(0)
	switch {
	case n == 0:
	case t.Histogram != nil && (w.threshold > 0 || w.percentile > 0):
		n, sum, fastest = w.addHistogram(t)
	default:
		fastest = sum / time.Duration(min(n, math.MaxInt64))
		if fastest < w.threshold {
			n = 0
		}
	}
	if t.Samples > 0 && n == 0 {
		return false // nothing above the threshold: as if it had not been
	}
	if n > 0 && t.Histogram == nil && w.percentile > 0 {
		if len(w.single) == cap(w.single) {
			return true
		}
		w.single = append(w.single, fastest)
	}
	w.inFlight = max(w.inFlight, t.MaxInFlight)
	w.dropped = w.dropped || t.Dropped > 0
	if n == 0 {
		return false
	}
	if w.count+n < w.count || w.sum+sum < w.sum {
		return true // no clock runs so long; keep what is there
	}
	w.count += n
	w.sum += sum
	w.fastest = min(w.fastest, fastest)
	return true
}

// addHistogram counts the samples of a tick that are at or above the
// threshold. With one, their sum is from the buckets, 1.6 % off at most.
func (w *Windowed) addHistogram(t *Tick) (n uint64, sum, fastest time.Duration) {
	first := rtt.Index(w.threshold)
	if lo, _ := rtt.Bounds(first); lo < w.threshold {
		first++
	}
	for i := first; i < rtt.Buckets; i++ {
		c := t.Histogram.Bucket[i]
		if c == 0 {
			continue
		}
		lo, hi := rtt.Bounds(i)
		if n == 0 {
			fastest = lo
		}
		n += uint64(c)
		sum += time.Duration(c) * (lo + hi) / 2
		if w.percentile > 0 {
			w.hist.Bucket[i] += min(c, math.MaxUint32-w.hist.Bucket[i])
		}
	}
	if w.threshold == 0 {
		sum = max(t.Sum, 0)
	}
	return n, sum, fastest
}

// statistic returns the mean or the percentile of a window that is not empty.
func (w *Windowed) statistic() time.Duration {
	switch {
	case w.percentile == 0:
		return w.sum / time.Duration(min(w.count, math.MaxInt64))
	case len(w.single) == 0:
		return w.hist.Quantile(w.percentile)
	}
	slices.Sort(w.single)
	rank := int(math.Floor(float64(len(w.single))*w.percentile + 0.5))
	return w.single[min(max(rank, 1), len(w.single))-1]
}

// restart empties the window and lets it begin now.
func (w *Windowed) restart(now time.Duration) {
	w.length = w.shortest
	if w.fastest < math.MaxInt64/2 {
		w.length = min(max(2*w.fastest, w.shortest), w.longest)
	} else if w.count > 0 {
		w.length = w.longest
	}
	w.begun = now
	w.count, w.sum, w.fastest = 0, 0, math.MaxInt64
	w.inFlight, w.dropped = 0, false
	if w.hist != nil {
		clear(w.hist.Bucket[:])
		w.single = w.single[:0]
	}
}

// Terms implements [Algorithm].
func (w *Windowed) Terms() []Term {
	s := w.sample
	return append(w.stepper.Terms(),
		Term{"enforced", float64(w.limit()), "The limit in force, within its bounds."},
		Term{"round_trip_seconds", s.RTT.Seconds(), "Latency that the last window passed on."},
		Term{"samples", float64(s.Count), "Samples of the last window."},
		Term{"window_seconds", s.Span.Seconds(), "Length of the last window."},
		Term{"weight", s.Weight, "Share of a full step that the last window was worth."},
		Term{"peak_in_flight", float64(s.InFlight), "The most units in flight in the last window."},
		Term{"warming", truth(s.Warming), "1 while no baseline is recorded and the limit is held."},
	)
}
