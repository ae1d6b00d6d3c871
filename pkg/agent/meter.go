package agent

import (
	"headgate/pkg/loader"
	"headgate/pkg/metrics"
	"headgate/pkg/rtt"
)

// tally adds up what a cumulative histogram grows by.
type tally struct {
	reader rtt.Reader
	window rtt.Histogram
	sum    metrics.Histogram
}

// perSecond turns a window that is meterInterval long into a rate.
func (t *tally) perSecond() float64 {
	return float64(t.window.Count) / meterInterval.Seconds()
}

func (t *tally) read(total *rtt.Histogram) {
	t.reader.Next(total, &t.window)
	t.sum.Add(&t.window)
}

// meter reads one signal of a target once a second: the last window is for the
// status, the sum of all of them for the metrics.
type meter struct {
	signal loader.Signal
	total  rtt.Histogram
	tally
}

// meters are those of what is timed of every target, and of what the limit
// follows where that is another.
func (t *target) meters() []*meter {
	all := []*meter{&t.service, &t.trips, &t.handshake}
	if t.signal == loader.Lifetime {
		all = append(all, &t.whole)
	}
	return all
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
func (m *meter) begin(g *loader.Gate, t *target) error {
	if err := m.read(g, t); err != nil {
		return err
	}
	if m.signal == t.signal {
		t.perTick.Begin(&m.total)
	}
	m.window = rtt.Histogram{}
	return nil
}

func (m *meter) read(g *loader.Gate, t *target) error {
	if err := g.Histogram(t.id, m.signal, &m.total); err != nil {
		return err
	}
	m.tally.read(&m.total)
	return nil
}
