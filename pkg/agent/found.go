package agent

import (
	"fmt"
	"slices"
	"time"

	"headgate/pkg/config"
	"headgate/pkg/discovery"
)

const (
	// settleStart is how long a start waits for those who know what there is. What
	// is found later is protected later.
	settleStart  = 5 * time.Second
	settleReload = 2 * time.Second

	// atOnce is how many new targets one plan has more than the one before.
	atOnce = 8

	// tryAgain is how long something that could not be protected is let alone.
	tryAgain = 10 * time.Second
)

// failed is a target that was found and could not be protected.
type failed struct {
	wanted
	err   error
	until time.Time
}

// roomFor is how many targets there have to be places for at the start. The
// quarter that is made beside that is for what is found, too.
func roomFor(cfg *config.Config) int {
	n := len(cfg.Targets())
	if slices.ContainsFunc(cfg.Rules, func(r config.Rule) bool { return r.Scope.Found() }) {
		n += discovery.MaxTargets * 4 / 5
	}
	return n
}

// begin puts the first plan in force. Whoever cannot be protected of what was
// found does not keep the agent from protecting what it is told to.
func (a *Agent) begin(cfg *config.Config) error {
	a.applying.Lock()
	defer a.applying.Unlock()
	p, err := a.survey(cfg, settleStart)
	if err != nil {
		return err
	}
	err = a.apply(p, cfg)
	if named := p.named(); err != nil && len(named) < len(p) {
		a.log.Error("what was found is not protected at once", "error", err)
		err = a.apply(named, cfg)
	}
	return err
}

// named returns what a plan has by name.
func (p plan) named() plan {
	return slices.DeleteFunc(slices.Clone(p), func(w wanted) bool { return w.found != nil })
}

// survey makes a plan of what there is.
func (a *Agent) survey(cfg *config.Config, patience time.Duration) (plan, error) {
	dynamic := slices.ContainsFunc(cfg.Rules, func(r config.Rule) bool { return r.Scope.Found() })
	if a.finder == nil && dynamic {
		var err error
		if a.finder, err = discovery.New(a.cgroup2, a.api, a.log); err != nil {
			return nil, err
		}
	}
	var r discovery.Result
	if a.finder != nil {
		r = a.finder.Settle(cfg.Rules, patience)
	}
	now := time.Now()
	a.failed = slices.DeleteFunc(a.failed, func(f failed) bool { return now.After(f.until) })
	p := slices.DeleteFunc(planOf(cfg, r.Found), func(w wanted) bool {
		if err := Lacking(w.Rule, a.gate.Capabilities()); w.found != nil && err != nil {
			r.Left = append(r.Left, left(w, err))
			return true
		}
		i := slices.IndexFunc(a.failed, func(f failed) bool { return f.same(w) })
		if i >= 0 {
			r.Left = append(r.Left, left(w, a.failed[i].err))
		}
		return i >= 0
	})
	r.Found = nil
	a.report(r)
	return p, nil
}

func left(w wanted, err error) discovery.Left {
	return discovery.Left{Rule: w.Rule.Name, Scope: w.Rule.Scope.String(), Port: w.Port, Reason: err.Error()}
}

// followUp puts in force what there is now, if it is something else.
func (a *Agent) followUp() error {
	if a.finder == nil {
		if a.moved() {
			return a.apply(a.plan, a.cfg)
		}
		return nil
	}
	return a.applyFound(a.cfg, 0)
}

// applyFound puts a configuration in force with what there is now. Of what was
// found, whoever cannot be protected keeps nobody else from it.
func (a *Agent) applyFound(cfg *config.Config, patience time.Duration) error {
	p, err := a.survey(cfg, patience)
	if err != nil {
		return err
	}
	if cfg == a.cfg && !a.moved() && slices.EqualFunc(p, a.plan, wanted.same) {
		return nil
	}
	var fresh []wanted
	for _, w := range p {
		if w.found != nil && !slices.ContainsFunc(a.plan, w.at) {
			fresh = append(fresh, w)
		}
	}
	// Without those that are new, and then with some more each time: windows run
	// in between.
	step, without := len(fresh), fresh
	if step > atOnce || len(fresh) == 0 {
		step, err = atOnce, a.apply(p.without(without), cfg)
		if err != nil {
			return err
		}
	}
	for len(without) > 0 {
		n := min(step, len(without))
		q := p.without(without[n:])
		err := a.apply(q, cfg)
		if err == nil || a.inForce(q) {
			without = without[n:]
			continue
		}
		if err := a.apply(p.without(without), cfg); err != nil {
			return err // it is no fault of theirs
		}
		if n == 1 {
			a.failed = append(a.failed, failed{without[0], err, time.Now().Add(tryAgain)})
			p, without = p.without(without[:1]), without[1:]
		}
		step = 1
	}
	return nil
}

// without returns a plan without some of its targets.
func (p plan) without(some []wanted) plan {
	return slices.DeleteFunc(slices.Clone(p), func(w wanted) bool { return slices.ContainsFunc(some, w.at) })
}

// inForce says whether a plan is, whatever could not be taken away after it.
func (a *Agent) inForce(p plan) bool { return slices.EqualFunc(p, a.plan, wanted.same) }

// report takes in what is not protected, and tells what is new in that.
func (a *Agent) report(r discovery.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.found
	a.found = r
	for _, l := range r.Left {
		if !slices.Contains(was.Left, l) {
			a.log.Warn("found, but not protected", "rule", l.Rule, "scope", l.Scope, "port", l.Port, "reason", l.Reason)
			a.trouble(false, "scope", fmt.Sprintf("rule %s does not protect %s: %s", l.Rule, placeOf(l), l.Reason))
		}
	}
	for _, text := range r.Problems {
		if !slices.Contains(was.Problems, text) {
			a.log.Error("it is not known what there is to protect", "reason", text)
			a.trouble(false, "scope", text)
		}
	}
	if len(was.Problems) > 0 && len(r.Problems) == 0 {
		a.log.Info("it is known again what there is to protect")
		a.trouble(true, "scope", "it is known again what there is to protect")
	}
}

// placeOf names a port of a scope.
func placeOf(l discovery.Left) string {
	if l.Port == 0 {
		return l.Scope
	}
	return fmt.Sprintf("%s/%d", l.Scope, l.Port)
}
