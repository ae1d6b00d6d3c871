package agent

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"headgate/pkg/config"
	"headgate/pkg/discovery"
	"headgate/pkg/loader"
	"headgate/pkg/scope"
)

// plan is what is to be protected, in the order in which it is reported. It
// comes from a configuration, or from whoever follows what a scope names.
type plan []wanted

// wanted is one target of a plan.
type wanted struct {
	config.Target
	netns string       // where it is, as [scope.OpenNetns] takes it
	found *scope.Netns // where it was found, instead; nil when it has a name
}

// planOf returns what a configuration names, and what was found for it.
func planOf(cfg *config.Config, found []discovery.Found) plan {
	var p plan
	for i := range cfg.Rules {
		r := &cfg.Rules[i]
		for _, f := range found {
			if f.Rule.Name == r.Name {
				p = append(p, wanted{Target: f.Target, found: f.Netns})
			}
		}
		if r.Scope.Found() {
			continue
		}
		for _, port := range r.Ports {
			p = append(p, wanted{Target: config.Target{Rule: r, Port: port}, netns: r.Scope.Netns})
		}
	}
	return p
}

// same says whether two targets of plans are the same in every respect.
func (w wanted) same(o wanted) bool {
	return w.at(o) && (w.Rule == o.Rule || reflect.DeepEqual(w.Rule, o.Rule))
}

// at says whether two targets of plans are in the same place.
func (w wanted) at(o wanted) bool {
	if w.Port != o.Port || w.netns != o.netns || (w.found == nil) != (o.found == nil) {
		return false
	}
	return w.found == nil || w.found.Cookie() == o.found.Cookie() && w.Rule.Scope == o.Rule.Scope
}

// names returns the names of the namespaces of a plan that have one, each once.
func (p plan) names() []string {
	var names []string
	for _, w := range p {
		if w.found == nil && !slices.Contains(names, w.netns) {
			names = append(names, w.netns)
		}
	}
	return names
}

// difference is what it takes to come from what is protected to a plan.
type difference struct {
	plan    plan
	places  []*place  // all of them
	targets []*target // in the order of the plan
	missing []missing

	added   []*target  // of targets: not protected until now
	changes []retuning // of the others
	removed []*target
	closed  []*scopeState
}

// place is a scope as it will be.
type place struct {
	*scopeState
	names   []string
	found   string
	next    map[uint16]*target // those of retuning.new for old ones
	opened  bool               // it is new
	added   bool               // a target of it is
	recount bool               // the unit of one is another, or who is exempt, or of which class
	dropped []uint16           // who waits for one of these has nothing to wait for any more
	begun   *holding           // nil unless holding begins
}

// missing is a namespace that was there and is not, by the name of it.
type missing struct {
	name   string
	reason error
}

// retuning is a target that goes on under another rule.
type retuning struct {
	old, new *target
	was      *config.Rule // of old; once it is retuned it has that of new
	rule     bool         // anything in it is another
	limit    bool         // the limit is computed in another way
	unit     bool         // something else is counted
	sources  bool         // something else is made of sources
}

// prepare finds the difference to a plan. It opens namespaces and changes
// nothing; [difference.forget] closes them again. A namespace that was there and
// is not any more is missing; any other one that cannot be opened is an error.
func (a *Agent) prepare(p plan) (_ *difference, err error) {
	d := &difference{plan: p}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.forget())
		}
	}()
	type key struct {
		netns string
		found *scope.Netns
	}
	places := make(map[key]*place)
	for _, w := range p {
		at, ok := places[key{w.netns, w.found}]
		if !ok {
			at, err = d.open(a.scopes, w)
			if err != nil && w.found == nil && slices.Contains(a.plan.names(), w.netns) {
				d.missing = append(d.missing, missing{w.netns, err})
				at, err = nil, nil
			}
			if err != nil {
				return nil, fmt.Errorf("rule %s: scope: %w", w.Rule.Name, err)
			}
			places[key{w.netns, w.found}] = at
		}
		if at == nil {
			continue
		}
		if err := d.add(at, w.Target); err != nil {
			return nil, err
		}
	}
	for _, s := range a.scopes {
		if !slices.ContainsFunc(d.places, func(p *place) bool { return p.scopeState == s }) {
			d.closed = append(d.closed, s)
			d.removed = slices.AppendSeq(d.removed, maps.Values(s.targets))
		}
	}
	for _, p := range d.places {
		for port, t := range p.targets {
			if p.next[port] == nil {
				p.dropped = append(p.dropped, port)
				d.removed = append(d.removed, t)
			}
		}
	}
	return d, nil
}

// open returns the place that a target is in. One namespace is one scope,
// whatever names it has; a name may have come to stand for another one.
func (d *difference) open(scopes []*scopeState, w wanted) (*place, error) {
	ns, err := w.open()
	if err != nil {
		return nil, err
	}
	var names []string
	if w.found == nil {
		names = append(names, w.netns)
	}
	for _, p := range d.places {
		if p.netns.Cookie() == ns.Cookie() {
			p.names = append(p.names, names...)
			return p, ns.Close()
		}
	}
	p := &place{names: names, found: w.Rule.Scope.String(), next: make(map[uint16]*target)}
	d.places = append(d.places, p)
	for _, s := range scopes {
		if s.netns.Cookie() == ns.Cookie() {
			p.scopeState = s
			return p, ns.Close()
		}
	}
	p.scopeState = &scopeState{netns: ns, names: p.names, found: p.found}
	p.opened = true
	return p, nil
}

func (w wanted) open() (*scope.Netns, error) {
	if w.found != nil {
		return w.found.Clone()
	}
	return scope.OpenNetns(w.netns)
}

// add puts a target in its place.
func (d *difference) add(p *place, ct config.Target) error {
	if other := p.next[ct.Port]; other != nil {
		return fmt.Errorf("rule %s: port %d of %s is that of rule %s for %s: it is the same namespace",
			ct.Rule.Name, ct.Port, ct.Rule.Scope, other.config.Rule.Name, other.config.Rule.Scope)
	}
	t, err := newTarget(ct, loader.TargetKey{Netns: p.netns.Cookie(), Port: ct.Port})
	if err != nil {
		return fmt.Errorf("rule %s: %w", ct.Rule.Name, err)
	}
	p.next[ct.Port] = t
	old := p.targets[ct.Port]
	if old == nil {
		p.added = true
		d.added = append(d.added, t)
		d.targets = append(d.targets, t)
		return nil
	}
	t.id = old.id
	c := compare(old, t)
	p.recount = p.recount || c.unit || c.sources
	if c.unit {
		p.dropped = append(p.dropped, ct.Port)
	}
	d.changes = append(d.changes, c)
	d.targets = append(d.targets, old)
	return nil
}

func compare(old, new *target) retuning {
	was, is := old.config.Rule, new.config.Rule
	unit := was.Unit != is.Unit
	return retuning{
		old:     old,
		new:     new,
		was:     was,
		rule:    !reflect.DeepEqual(was, is),
		unit:    unit,
		sources: !reflect.DeepEqual(was.SourcePolicy(), is.SourcePolicy()),
		limit: unit || was.Signal != is.Signal || !reflect.DeepEqual(was.Limit, is.Limit) ||
			!reflect.DeepEqual(was.WarmUp, is.WarmUp),
	}
}

// forget closes what prepare has opened.
func (d *difference) forget() error {
	var errs []error
	for _, p := range d.places {
		if p.opened {
			errs = append(errs, p.netns.Close())
		}
	}
	return errors.Join(errs...)
}

// moved says whether a name has come to stand for another namespace, or none,
// or one that stood for none has a namespace again.
func (a *Agent) moved() bool {
	for _, m := range a.missing {
		if scope.Exists(m.name) {
			return true
		}
	}
	for _, s := range a.scopes {
		for _, name := range s.names {
			if !s.netns.Is(name) {
				return true
			}
		}
	}
	return false
}
