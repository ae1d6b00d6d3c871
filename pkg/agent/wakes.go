package agent

import (
	"errors"
	"fmt"

	"headgate/pkg/loader"
	"headgate/pkg/scope"
)

// waker is who acts on what the programs tell of a target.
type waker struct {
	holding *holding // nil where nothing waits
	trimmer *trimmer // nil where the kernel cannot end connections
}

// wake has those told who act on what the programs tell, as the scopes are now.
func (a *Agent) wake() error {
	wakers := make(map[uint32]waker)
	for _, s := range a.scopes {
		if err := a.trim(s); err != nil {
			return fmt.Errorf("scope %s: %w", s, err)
		}
		for _, t := range s.targets {
			w := waker{trimmer: s.trimmer}
			if t.ingress {
				w.holding = s.holding
			}
			wakers[t.id] = w
		}
	}
	a.wakers.Store(&wakers)
	if a.wakes != nil {
		return nil
	}
	w, err := a.gate.NewWakes()
	if err != nil {
		return err
	}
	a.wakes, a.awake = w, make(chan struct{})
	go a.listen(w)
	return nil
}

// trim makes ready to end connections of a scope, see [trimmer].
func (a *Agent) trim(s *scopeState) (err error) {
	if s.trimmer != nil {
		return nil
	}
	s.trimmer, err = newTrimmer(s.netns, a.log)
	a.trims = err == nil
	if errors.Is(err, scope.ErrCannotDestroy) {
		a.log.Warn("this kernel cannot do it; going on without", "capability", capTrim, "reason", err)
		return nil
	}
	return err
}

// listen passes on what the programs tell, until w is closed.
func (a *Agent) listen(w *loader.Wakes) {
	defer close(a.awake)
	for {
		wake, err := w.Next()
		if err != nil {
			if !loader.IsClosed(err) {
				a.log.Error("what the programs tell is noticed late from now on", "error", err)
			}
			return
		}
		to := (*a.wakers.Load())[wake.Target]
		switch {
		case wake.Kind == loader.WakeTrim:
			to.trimmer.add(wake)
		case to.holding == nil: // nothing waits any more
		case wake.Kind == loader.WakeIdle:
			to.holding.ender.add(wake)
		default:
			to.holding.holder.Wake(wake.Target, wake.At)
		}
	}
}
