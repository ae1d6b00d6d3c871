package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"headgate/pkg/config"
	"headgate/pkg/loader"
)

var errEnding = errors.New("the agent is ending")

// apply makes a plan what is protected, under the settings of cfg. It is how an
// agent starts, reloads, and follows what a scope names. First comes all that
// can fail and changes nothing for who is protected now, and is undone when it
// does; then, in one step, the new plan is in force; then is taken away what
// nobody needs any more.
//
// Targets of both plans keep their counts, and what was learned of them as far
// as the rule leaves it its meaning.
//
// applying is held.
func (a *Agent) apply(p plan, cfg *config.Config) error {
	if a.ended {
		return errEnding
	}
	d, err := a.prepare(p)
	if err != nil {
		return err
	}
	if err := a.build(d, cfg); err != nil {
		return errors.Join(err, a.unbuild(d))
	}
	committed, err := a.commit(d, cfg)
	if !committed {
		return errors.Join(err, a.unbuild(d))
	}
	return errors.Join(err, a.clear(d))
}

// build brings what is new into the kernel. Targets come before programs, and
// programs before the connections that were there already, so that each of these
// is counted exactly once.
func (a *Agent) build(d *difference, cfg *config.Config) error {
	now, err := monotonic()
	if err != nil {
		return err
	}
	for i := range cfg.Rules {
		if err := Lacking(&cfg.Rules[i], a.gate.Capabilities()); err != nil {
			return err
		}
	}
	if err := a.attach(d, cfg, now); err != nil {
		return err
	}
	if !a.running() {
		if err := a.inherit(d); err != nil {
			return err
		}
	}
	// Without the lock: a namespace may have many devices, and the windows go on.
	// Some at once, since most of it is waiting for the kernel's grace periods.
	var holds errgroup.Group
	holds.SetLimit(atOnce)
	for _, p := range d.places {
		if needsIngress(p.next) && p.holding == nil {
			holds.Go(func() (err error) {
				if p.begun, err = a.hold(p); err != nil {
					return fmt.Errorf("scope %s: %w", p, err)
				}
				return nil
			})
		}
	}
	return holds.Wait()
}

func (a *Agent) attach(d *difference, cfg *config.Config, now time.Duration) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Where listeners are is known before the first order, which depends on it.
	for _, p := range d.places {
		if err := a.watchListeners(p.scopeState, p.next, now); err != nil {
			return fmt.Errorf("scope %s: %w", p, err)
		}
	}
	if err := a.addTargets(d, now+cfg.Lease); err != nil {
		return err
	}
	if err := a.gate.AttachCgroup2(a.cgroup2); err != nil {
		return err
	}
	if timesAccept(cfg) {
		if err := a.gate.WatchReads(true); err != nil {
			return err
		}
	}
	// By what a predecessor has counted may have changed meanwhile.
	inherited := !a.running() && !a.gate.Fresh()
	for _, p := range d.places {
		// Counted first: what is refused depends on it.
		if p.added && (inherited || a.gate.Misses(p.netns, p.numbers())) {
			if err := a.gate.Adopt(p.netns); err != nil {
				return fmt.Errorf("scope %s: %w", p, err)
			}
		}
		if err := a.gate.AttachNetns(p.netns); err != nil {
			return fmt.Errorf("scope %s: %w", p, err)
		}
	}
	if !a.running() {
		a.targets = d.added // of what is wrong with the counts of a predecessor, all is told
	}
	return nil
}

// inherit takes over what a predecessor has left, before anything is held. What
// it has counted may have ended while nobody saw it.
func (a *Agent) inherit(d *difference) error {
	return errors.Join(a.recount(true), a.gate.Prune(), a.gate.Forget(), a.pruneHolding(d.places))
}

// addTargets makes the kernel count targets. What a predecessor has left is in force
// at once, so that there is no gap. The rest is once the plan is: until what holds is
// there too, who should wait would be refused.
func (a *Agent) addTargets(d *difference, lease time.Duration) error {
	now, err := monotonic()
	if err != nil {
		return err
	}
	a.building = d.added
	for _, t := range d.added {
		id, known := a.gate.Targets()[t.key]
		if known {
			was, err := a.gate.Reading(id)
			if err != nil {
				return err
			}
			t.adopt(was)
		}
		t.known = known
		o := t.begin(now)
		if a.running() || !a.gate.Follows() || o.MaxWaiting > 0 && !(known && a.gate.Holds(id)) {
			o.Enforce = false
		}
		t.recounted.at = now // its connections are counted
		t.replace(d.removed)
		if err := a.setSources(t); err != nil {
			return err
		}
		if t.id, err = a.gate.Target(t.key, o, lease); err != nil {
			return fmt.Errorf("rule %s: %w", t.config.Rule.Name, err)
		}
		for _, m := range t.meters() {
			if err := m.begin(a.gate, t, &a.scratch); err != nil {
				return err
			}
		}
	}
	return nil
}

// unbuild takes away again what build has made. At a start most of that is for
// [loader.Gate.Abandon], which knows what a predecessor has left; but what is
// attached to a namespace has to be let go before its file is closed.
func (a *Agent) unbuild(d *difference) error {
	var errs []error
	for _, p := range d.places {
		if p.begun != nil {
			errs = append(errs, p.begun.undo())
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.building = nil
	release := a.gate.ReleaseNetns
	if a.running() {
		errs = append(errs, a.gate.WatchReads(timesAccept(a.cfg)))
		release = a.gate.DetachNetns
		for _, t := range d.added {
			if !t.known {
				errs = append(errs, a.gate.Retire(t.key))
			}
		}
	}
	for _, p := range d.places {
		if p.opened {
			errs = append(errs, release(p.netns.Cookie()))
		}
	}
	return errors.Join(append(errs, d.forget())...)
}

// commit puts the plan in force. Unless it says that it is committed nothing has
// changed.
func (a *Agent) commit(d *difference, cfg *config.Config) (committed bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, err := monotonic()
	if err != nil {
		return false, err
	}
	if err := a.changeSources(d.changes); err != nil {
		return false, err
	}
	var fresh []*target // those whose orders are others from now on
	for _, c := range d.changes {
		if !c.rule {
			c.old.config = c.new.config
			continue
		}
		fresh = append(fresh, c.old)
		r, lost := a.gate.Reading(c.old.id)
		err = errors.Join(err, lost, c.old.retune(a.gate, c, r, now, &a.scratch))
	}
	for _, t := range d.added {
		var lost error
		t.last, lost = a.gate.Reading(t.id) // the status is right from the start
		err = errors.Join(err, lost)
	}
	a.plan, a.cfg, a.missing, a.targets, a.building = d.plan, cfg, d.missing, d.targets, nil
	a.scopes = nil
	for _, p := range d.places {
		a.scopes = append(a.scopes, p.scopeState)
		p.commit()
		if !a.running() {
			p.reviewAfterStart(now)
		}
	}
	a.ids, a.orders = nil, make([]loader.Order, len(a.targets))
	for _, t := range a.targets {
		a.ids = append(a.ids, t.id)
	}
	err = errors.Join(err, a.wake())
	err = errors.Join(err, a.order(append(fresh, d.added...), now))
	for _, t := range d.removed {
		err = errors.Join(err, a.gate.Retire(t.key))
	}
	// Orders first: who is let go meets them.
	for _, p := range d.places {
		p.direct()
	}
	a.renewed = now
	a.announce(d)
	return true, err
}

// changeSources has targets make what another rule says of clients' addresses. It
// is what can fail for lack of room; then nothing is changed.
func (a *Agent) changeSources(changes []retuning) error {
	for i, c := range changes {
		if !c.sources {
			continue
		}
		c.new.overridden = c.old.overridden
		err := a.setSources(c.new)
		if err == nil {
			continue
		}
		for _, done := range changes[:i] {
			if done.sources {
				err = errors.Join(err, a.setSources(done.old))
			}
		}
		return err
	}
	return nil
}

// replace takes over what was set by hand for the target that had its place: its
// namespace is another one now.
func (t *target) replace(removed []*target) {
	for _, r := range removed {
		if r.config.Port == t.config.Port && r.config.Rule.Scope == t.config.Rule.Scope {
			t.overridden = r.overridden
			t.setMode()
		}
	}
}

// order puts the orders of some targets in force at once.
func (a *Agent) order(targets []*target, now time.Duration) error {
	var ids []uint32
	var orders []loader.Order
	for _, t := range targets {
		t.tick++
		ids, orders = append(ids, t.id), append(orders, t.order())
	}
	return a.gate.Write(ids, orders, now+a.cfg.Lease)
}

// numbers are those of the targets that a place will have, by port.
func (p *place) numbers() map[uint16]uint32 {
	ids := make(map[uint16]uint32, len(p.next))
	for port, t := range p.next {
		ids[port] = t.id
	}
	return ids
}

// commit makes what a place will be what its scope is.
func (p *place) commit() {
	was := p.targets
	p.changed = p.changed || p.recount
	p.scopeState.names, p.scopeState.found, p.targets = p.names, p.found, p.next
	for port, t := range was {
		if p.next[port] != nil {
			p.targets[port] = t
		}
	}
	if p.begun != nil {
		p.holding = p.begun
	}
}

// direct tells those who hold of the targets as they are now.
func (p *place) direct() {
	h := p.holding
	if h == nil {
		return
	}
	for _, port := range p.dropped {
		h.holder.DropTarget(port)
	}
	for port, t := range p.targets {
		if t.ingress {
			t.holder = h.holder
			h.holder.SetTarget(port, t.id, t.policy())
		} else if t.holder != nil {
			t.dropHolder()
			h.holder.DropTarget(port)
		}
	}
	h.ender.setTargets(p.targets)
}

// announce logs what has changed.
func (a *Agent) announce(d *difference) {
	log := func(t *target) *slog.Logger {
		return a.log.With("rule", t.config.Rule.Name, "port", t.config.Port, "scope", t.config.Rule.Scope.String())
	}
	if !a.running() && !a.gate.Fresh() {
		a.log.Info("taking over from an earlier agent")
	}
	for _, t := range d.added {
		log(t).Info("protecting", "algorithm", t.config.Rule.Limit.Algorithm, "mode", t.mode)
		if t.last.InFlight > 0 {
			log(t).Info("connections or requests were there already", "in_flight", t.last.InFlight)
		}
		if !t.listener.present {
			log(t).Warn("nothing listens on the port yet")
		}
	}
	for _, c := range d.changes {
		if c.rule {
			what, former := describe(c.was, c.old.config.Rule)
			log(c.old).With(former...).Info(what, "algorithm", c.old.config.Rule.Limit.Algorithm, "mode", c.old.mode)
		}
	}
	for _, t := range d.removed {
		log(t).Info("no longer protected")
	}
	for _, m := range d.missing {
		a.log.Warn("a network namespace is gone; its rules hold again when it is back", "netns", m.name, "reason", m.reason)
	}
}

// describe says what a target goes on under, and which rule and scope it had
// before where these are others.
func describe(was, is *config.Rule) (what string, former []any) {
	if was.Name == is.Name && was.Scope.String() == is.Scope.String() {
		return "the rule of the port has changed", nil
	}
	return "the port goes over to another rule", []any{"former_rule", was.Name, "former_scope", was.Scope.String()}
}

// clear takes away what nobody needs any more, once the plan is in force. What
// fails here stays behind, and the plan holds.
func (a *Agent) clear(d *difference) error {
	var errs []error
	for _, p := range d.places {
		if p.recount {
			errs = append(errs, a.locked(func() error { return a.gate.Adopt(p.netns) }))
		}
		if h := p.holding; h != nil && !needsIngress(p.targets) {
			a.mu.Lock()
			p.holding = nil
			a.mu.Unlock()
			errs = append(errs, h.remove())
		}
	}
	if !timesAccept(a.cfg) {
		errs = append(errs, a.locked(func() error { return a.gate.WatchReads(false) }))
	}
	for _, s := range d.closed {
		errs = append(errs, s.trimmer.close())
		if s.holding != nil {
			errs = append(errs, s.holding.remove())
		}
		errs = append(errs, a.locked(func() error { return a.gate.DetachNetns(s.netns.Cookie()) }), s.netns.Close())
	}
	a.gate.Disinherit()
	return errors.Join(append(errs, a.locked(a.retire))...)
}

// timesAccept says whether a rule follows how long connections wait for the
// application.
func timesAccept(cfg *config.Config) bool {
	return slices.ContainsFunc(cfg.Rules, func(r config.Rule) bool { return r.Signal == config.SignalAccept })
}

func (a *Agent) locked(f func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return f()
}

// retire opens the gates of targets that no rule names any more. Those that have
// connections yet are counted on, and retired when these are gone.
func (a *Agent) retire() error {
	var errs []error
	for key, id := range a.gate.Targets() {
		coming := slices.ContainsFunc(a.building, func(t *target) bool { return t.key == key })
		if !coming && !slices.Contains(a.ids, id) {
			errs = append(errs, a.gate.Retire(key))
		}
	}
	return errors.Join(errs...)
}
