package controller

import "time"

// warmingGuarded keeps everything from guarded for a while after the first
// tick and holds the limit, so that nothing is learned from a target that is
// only coming up.
type warmingGuarded struct {
	*Guarded
	hold    Decision
	warmUp  time.Duration
	started bool
	born    time.Duration // first tick
	over    bool
}

func (w *warmingGuarded) Decide(t Tick) Decision {
	if w.over {
		return w.Guarded.Decide(t)
	}
	if !w.started {
		w.started = true
		w.born = t.Now
	}
	if t.Now-w.born < w.warmUp {
		return w.hold
	}
	w.over = true
	return w.Guarded.Decide(t)
}

func (w *warmingGuarded) Terms() []Term {
	return append(w.Guarded.Terms(), Term{"warming", truth(!w.over), "1 while no baseline is recorded and the limit is held."})
}
