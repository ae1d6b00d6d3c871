package agent

import (
	"fmt"
	"net/netip"
	"time"

	"headgate/pkg/config"
	"headgate/pkg/control"
	"headgate/pkg/status"
)

// override is what was set by hand in place of what the rule says. It outlives
// reloads, but not the agent.
type override struct {
	limit *int
	until time.Duration // CLOCK_MONOTONIC, of the limit; 0: for good
	ended string        // why it is no longer set by hand; empty once that was told
	mode  config.Mode   // empty: none

	exempt  []netip.Prefix // beside those of the rule
	counted []netip.Prefix // of those of the rule, not exempt
}

// SetLimit carries out a request to set or clear limits by hand. The errors are
// those of package control.
func (a *Agent) SetLimit(r control.Limit) (control.Answer, error) {
	switch {
	case r.Target == "":
		return control.Answer{}, fmt.Errorf("%w: it takes a target to set the limit of", control.ErrInvalid)
	case r.Limit < 0 || r.Limit > control.MaxLimit:
		return control.Answer{}, fmt.Errorf("%w: the limit %d is not from 0 to %d", control.ErrInvalid, r.Limit, control.MaxLimit)
	case !(r.ForSeconds >= 0 && r.ForSeconds <= control.MaxFor.Seconds()):
		return control.Answer{}, fmt.Errorf("%w: a limit is set for 0s to %v", control.ErrInvalid, control.MaxFor)
	case r.Limit == 0 && !r.Clear && !r.Force:
		return control.Answer{}, fmt.Errorf("%w: a limit of 0 refuses everybody; --force if that is meant", control.ErrForce)
	}
	return a.override(r.Target, func(t *target, now time.Duration) {
		if r.Clear {
			if t.overridden.limit != nil {
				a.log.Warn("limit cleared by hand", "rule", t.config.Rule.Name, "port", t.config.Port,
					"scope", t.config.Rule.Scope.String())
			}
			t.clearLimit(now, "cleared by hand")
			return
		}
		t.overridden.limit, t.overridden.until, t.overridden.ended = &r.Limit, 0, ""
		if r.ForSeconds > 0 {
			t.overridden.until = now + max(time.Duration(r.ForSeconds*float64(time.Second)), 1)
		}
		t.change = change{reason: "set by hand", at: now}
		a.sayOf(t, "limit set to %d by hand%s", r.Limit, during(r.ForSeconds))
		a.log.Warn("limit set by hand", "rule", t.config.Rule.Name, "port", t.config.Port,
			"scope", t.config.Rule.Scope.String(), "limit", r.Limit, "for_seconds", r.ForSeconds)
	})
}

// during is for how long a limit is set.
func during(seconds float64) string {
	if seconds == 0 {
		return ""
	}
	return fmt.Sprintf(" for %v", time.Duration(seconds*float64(time.Second)))
}

// SetModes carries out a request to switch modes.
func (a *Agent) SetModes(r control.Mode) (control.Answer, error) {
	mode := config.Mode(r.Mode)
	if mode != config.ModeEnforce && mode != config.ModeObserve {
		return control.Answer{}, fmt.Errorf("%w: the mode %.20q is neither enforce nor observe", control.ErrInvalid, r.Mode)
	}
	return a.override(r.Target, func(t *target, _ time.Duration) {
		was := t.mode
		t.overridden.mode = mode
		t.setMode()
		if t.mode != was {
			a.sayOf(t, "mode set to %s by hand", t.mode)
			a.log.Warn("mode set by hand", "rule", t.config.Rule.Name, "port", t.config.Port,
				"scope", t.config.Rule.Scope.String(), "mode", t.mode)
		}
	})
}

// SetMode switches every target to enforce or observe.
func (a *Agent) SetMode(m config.Mode) error {
	_, err := a.SetModes(control.Mode{Mode: string(m)})
	return err
}

// override does something to the targets that a name stands for, and puts what
// comes of it in force at once.
func (a *Agent) override(name string, set func(t *target, now time.Duration)) (control.Answer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	targets, err := a.find(name)
	if err != nil {
		return control.Answer{}, err
	}
	now, err := monotonic()
	if err != nil {
		return control.Answer{}, err
	}
	for _, t := range targets {
		set(t, now)
	}
	if err := a.order(targets, now); err != nil {
		return control.Answer{}, err
	}
	answer := control.Answer{Targets: make([]status.Target, 0, len(targets))}
	for _, t := range targets {
		answer.Targets = append(answer.Targets, t.status(now))
	}
	return answer, nil
}

// find returns the targets that a name stands for, see [control.Limit]; all for
// an empty one.
func (a *Agent) find(name string) ([]*target, error) {
	if name == "" {
		return a.targets, nil
	}
	found, err := control.Find(a.targets, func(t *target) control.Name {
		return control.Name{Rule: t.config.Rule.Name, Scope: t.config.Rule.Scope.String(), Port: t.config.Port}
	}, name)
	if err != nil {
		return nil, err
	}
	return found, nil
}

// setMode puts the mode in force that was set by hand, or else that of the rule.
func (t *target) setMode() {
	if t.overridden.mode == t.config.Rule.Mode {
		t.overridden.mode = ""
	}
	t.mode = t.config.Rule.Mode
	if m := t.overridden.mode; m != "" {
		t.mode = m
	}
}

// clearLimit ends a limit that was set by hand, if one was.
func (t *target) clearLimit(now time.Duration, why string) {
	if t.overridden.limit != nil {
		t.overridden.limit, t.overridden.until, t.overridden.ended = nil, 0, why
		t.change = change{reason: why, at: now}
	}
}

// expire ends a limit that was set by hand when its time is over.
func (t *target) expire(now time.Duration) (expired bool) {
	o := &t.overridden
	if o.limit == nil || o.until == 0 || now < o.until {
		return false
	}
	t.clearLimit(now, "what was set by hand has expired")
	return true
}

// limits are what is enforced now, before and after a refusal.
func (t *target) limits() (limit, afterRefusal int) {
	if o := t.overridden.limit; o != nil {
		return *o, *o // of all connections: who sets it by hand counts these
	}
	return t.enforced(t.decision.Limit), t.enforced(t.decision.AfterRefusal)
}

// status reports what was set by hand, nil for nothing.
func (o *override) status(now time.Duration) *status.Override {
	if o.limit == nil && o.mode == "" && len(o.exempt)+len(o.counted) == 0 {
		return nil
	}
	s := &status.Override{Limit: o.limit, Mode: string(o.mode), Exempt: words(o.exempt), NotExempt: words(o.counted)}
	if o.until > 0 {
		left := max(o.until-now, 0).Seconds()
		s.ExpiresInSeconds = &left
	}
	return s
}
