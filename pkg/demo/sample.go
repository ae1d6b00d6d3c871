package demo

import (
	"sync/atomic"
	"time"

	"headgate/internal/lab/load"
	"headgate/pkg/status"
)

// sampleEvery is the distance of the timeline's samples.
const sampleEvery = 250 * time.Millisecond

// Sample is what was seen at one moment. Rates are per second and over the
// last second, or since the begin of the run.
type Sample struct {
	Seconds float64 `json:"seconds"` // since the begin of the run
	Phase   string  `json:"phase"`   // warm-up, observe or enforce

	// As the clients see it.
	Offered  float64 `json:"offered_per_second"`
	Answered float64 `json:"answered_per_second"`

	// As the limiter sees it. In observe, what it would have refused.
	Admitted       float64 `json:"admitted_per_second"`
	Refused        float64 `json:"refused_per_second"`
	WouldRefuse    float64 `json:"would_refuse_per_second"`
	Limit          int     `json:"limit"`
	InFlight       int     `json:"in_flight"`
	ServiceSeconds float64 `json:"service_seconds"` // mean of the last window
}

// totals are the counters whose differences are a sample's rates.
type totals struct {
	at                                                time.Duration
	offered, answered, admitted, refused, wouldRefuse uint64
}

// watcher makes the timeline.
type watcher struct {
	limiter      Limiter
	recorder     *load.Recorder
	offered      *atomic.Uint64
	warmUp, flip time.Duration

	history []totals // of the last second, oldest first
	samples []Sample
}

// sample takes a sample and returns all until now.
func (w *watcher) sample(now time.Duration) []Sample {
	var target status.Target
	if targets := w.limiter.Status().Targets; len(targets) > 0 {
		target = targets[0]
	}
	rejected := target.RejectedTotal
	t := totals{
		at:          now,
		offered:     w.offered.Load(),
		answered:    w.recorder.Counts().Answered,
		admitted:    target.AdmittedTotal,
		refused:     rejected.Limit + rejected.Pace + rejected.Source + rejected.HoldTimeout,
		wouldRefuse: target.WouldRejectTotal,
	}
	before := totals{}
	if len(w.history) > 0 {
		before = w.history[0]
	}
	if w.history = append(w.history, t); len(w.history) > int(time.Second/sampleEvery) {
		w.history = w.history[1:]
	}
	// Counters that a limiter set back give no rate rather than a huge one.
	rate := func(now, then uint64) float64 {
		if now < then || t.at <= before.at {
			return 0
		}
		return float64(now-then) / (t.at - before.at).Seconds()
	}
	w.samples = append(w.samples, Sample{
		Seconds:        now.Seconds(),
		Phase:          w.phase(now),
		Offered:        rate(t.offered, before.offered),
		Answered:       rate(t.answered, before.answered),
		Admitted:       rate(t.admitted, before.admitted),
		Refused:        rate(t.refused, before.refused),
		WouldRefuse:    rate(t.wouldRefuse, before.wouldRefuse),
		Limit:          target.Limit,
		InFlight:       target.InFlight,
		ServiceSeconds: target.Window.MeanSeconds,
	})
	return w.samples
}

func (w *watcher) phase(now time.Duration) string {
	switch {
	case now < w.warmUp:
		return "warm-up"
	case now < w.flip:
		return Observe
	}
	return Enforce
}
