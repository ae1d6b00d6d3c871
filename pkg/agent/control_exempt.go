package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"headgate/pkg/config"
	"headgate/pkg/control"
	"headgate/pkg/source"
)

// SetExempt carries out a request about who is exempt: of those who come from now
// on, and of those who are there. It is done for all targets that are meant, or
// for none.
func (a *Agent) SetExempt(r control.Exempt) (control.Answer, error) {
	network, err := config.ParseNetwork(r.Network)
	if err != nil {
		return control.Answer{}, fmt.Errorf("%w: %w", control.ErrInvalid, err)
	}
	if network.Bits() == 0 && !r.Remove && !r.Force {
		return control.Answer{}, fmt.Errorf("%w: %v exempts everybody; --force if that is meant", control.ErrForce, network)
	}
	a.applying.Lock() // no namespace is closed meanwhile
	defer a.applying.Unlock()
	if a.ended {
		return control.Answer{}, errEnding
	}
	var changed []*target
	if err := a.locked(func() error {
		changed, err = a.exempt(r.Target, network, r.Remove)
		return err
	}); err != nil {
		return control.Answer{}, err
	}
	var errs []error
	for _, s := range a.scopes {
		if slices.ContainsFunc(changed, func(t *target) bool { return s.targets[t.config.Port] == t }) {
			s.changed = true
			errs = append(errs, a.gate.Adopt(s.netns))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return control.Answer{}, err
	}
	return a.override(r.Target, func(*target, time.Duration) {})
}

// exempt changes who is exempt on the targets that a name stands for, and returns
// those where that was another network than before. The lock is held.
func (a *Agent) exempt(name string, network netip.Prefix, remove bool) (changed []*target, err error) {
	targets, err := a.find(name)
	if err != nil {
		return nil, err
	}
	before := make(map[*target]override)
	for _, t := range targets {
		is := slices.Contains(t.sourcePolicy().Exempt, network)
		if is != remove {
			continue // as it is to be
		}
		before[t] = t.overridden
		t.overridden.toggle(network, t.config.Rule.Exempt, remove)
		if err := a.setSources(t); err != nil {
			for t, was := range before {
				t.overridden = was
				err = errors.Join(err, a.setSources(t))
			}
			return nil, err
		}
		changed = append(changed, t)
	}
	if remove && len(changed) == 0 {
		return nil, fmt.Errorf("%w: %v is not one of the networks that are exempt there", control.ErrInvalid, network)
	}
	for _, t := range changed {
		what := "exempt"
		if remove {
			what = "no longer exempt"
		}
		a.sayOf(t, "%v is %s, by hand", network, what)
		a.log.Warn("changed by hand who is exempt", "rule", t.config.Rule.Name, "port", t.config.Port,
			"scope", t.config.Rule.Scope.String(), "network", network, "is", what)
	}
	return changed, nil
}

// toggle notes that a network is exempt, or is not, where the rule names some.
func (o *override) toggle(network netip.Prefix, rule []netip.Prefix, remove bool) {
	without := func(all []netip.Prefix) []netip.Prefix {
		return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return p == network })
	}
	o.exempt, o.counted = without(o.exempt), without(o.counted)
	switch named := slices.Contains(rule, network); {
	case remove && named:
		o.counted = append(o.counted, network)
	case !remove && !named:
		o.exempt = append(o.exempt, network)
	}
}

// sourcePolicy is what is made of clients' addresses: by the rule, and by hand.
func (t *target) sourcePolicy() source.Policy {
	p := t.config.Rule.SourcePolicy()
	p.Exempt = slices.DeleteFunc(slices.Clone(p.Exempt), func(n netip.Prefix) bool {
		return slices.Contains(t.overridden.counted, n)
	})
	for _, n := range t.overridden.exempt {
		if !slices.Contains(p.Exempt, n) {
			p.Exempt = append(p.Exempt, n)
		}
	}
	return p
}

// setSources puts that in force.
func (a *Agent) setSources(t *target) error {
	p := t.sourcePolicy()
	if err := a.gate.SetSources(t.key, p); err != nil {
		return fmt.Errorf("rule %s: %w", t.config.Rule.Name, err)
	}
	t.sources = source.NewTable(p)
	return nil
}

// words are prefixes as text, nil for none.
func words(prefixes []netip.Prefix) []string {
	var all []string
	for _, p := range prefixes {
		all = append(all, p.String())
	}
	return all
}
