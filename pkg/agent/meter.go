package agent

import (
	"time"

	"headgate/pkg/loader"
	"headgate/pkg/metrics"
	"headgate/pkg/rtt"
)

// scratch is where histograms are read into that are of use for a moment: of
// one target after the other. The lock of the agent is held.
type scratch struct {
	total  rtt.Histogram // as the kernel has it
	window rtt.Histogram // since the last time
}

// tally adds up what a cumulative histogram grows by.
type tally struct {
	reader rtt.Reader
	window summary
	sum    metrics.Histogram
}

// summary is what is reported of a window of samples.
type summary struct {
	samples             uint64
	mean, min, p50, p99 time.Duration
}

// perSecond turns a window that is meterInterval long into a rate.
func (t *tally) perSecond() float64 {
	return float64(t.window.samples) / meterInterval.Seconds()
}

func (t *tally) read(total, window *rtt.Histogram) {
	t.reader.Next(total, window)
	t.window = summary{}
	if window.Count == 0 {
		return
	}
	t.sum.Add(window)
	t.window = summary{
		samples: window.Count,
		mean:    window.Mean(),
		min:     window.Quantile(0),
		p50:     window.Quantile(0.5),
		p99:     window.Quantile(0.99),
	}
}

// meter reads one signal of a target once a second: the last window is for the
// status, the sum of all of them for the metrics.
type meter struct {
	signal loader.Signal
	seen   uint64 // samples, as the counters tell
	tally
}

// meters are those of what is timed of every target, and of what the limit may
// follow beside that.
func (t *target) meters() [4]*meter {
	return [...]*meter{&t.service, &t.trips, &t.handshake, &t.whole}
}

// followed is the meter of what the limit follows.
func (t *target) followed() *meter {
	for _, m := range t.meters() {
		if m.signal == t.signal {
			return m
		}
	}
	return &t.service
}

// begin takes what a predecessor has counted as the first window, so that the
// totals go on where it stopped.
func (m *meter) begin(g *loader.Gate, t *target, s *scratch) error {
	if err := m.fetch(g, t, s); err != nil {
		return err
	}
	if m.signal == t.signal {
		t.perTick.Begin(&s.total)
	}
	m.window = summary{}
	return nil
}

// read takes in what there is since the last time. The programs count a sample
// in the histogram first: while the counter stands still there is nothing new.
func (m *meter) read(g *loader.Gate, t *target, s *scratch) error {
	if n := t.last.Samples[m.signal]; n != m.seen {
		m.seen = n
		return m.fetch(g, t, s)
	}
	m.window = summary{}
	return nil
}

func (m *meter) fetch(g *loader.Gate, t *target, s *scratch) error {
	if err := g.Histogram(t.id, m.signal, &s.total); err != nil {
		return err
	}
	m.tally.read(&s.total, &s.window)
	return nil
}
