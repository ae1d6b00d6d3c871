package agent

import (
	"maps"
	"time"

	"headgate/pkg/loader"
	"headgate/pkg/status"
)

// The counts are compared with what there is so often: each minute, for they
// are right unless somebody has had his hands in the kernel; and each second
// while there are connections whose end nothing else tells. Only those of each
// minute ask for connections that nobody has counted: that takes more.
const (
	recountInterval      = time.Minute
	blindRecountInterval = time.Second
)

// recounts is what is known of those that were made.
type recounts struct {
	total uint64
	next  time.Duration // when one is due that asks for what is not counted, too
	blind time.Duration // when one is due that does not; 0: none is
}

// due says whether it is time for one, and whether it has to ask.
func (r *recounts) due(now time.Duration) (recount, ask bool) {
	ask = now >= r.next
	return ask || r.blind > 0 && now >= r.blind, ask
}

// made notes that one was.
func (r *recounts) made(now time.Duration, asked, blind bool) {
	r.total++
	if asked {
		r.next = now + recountInterval
	}
	r.blind = 0
	if blind {
		r.blind = now + blindRecountInterval
	}
}

// recounted is what the last recount has found of a target.
type recounted struct {
	drift loader.Drift
	at    time.Duration
}

// recountDue says whether it is time for one, and whether it has to ask for
// connections that nobody has counted.
func (a *Agent) recountDue() (recount, ask bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, err := monotonic()
	if err != nil {
		return false, false // as the next window will say
	}
	return a.recounts.due(now)
}

// Recount compares the counts of every target with the sockets that there are,
// now, and corrects what is certain to be wrong. Connections that nobody has
// counted are; and those that are counted as they were to be before a change are
// counted as they are to be.
func (a *Agent) Recount() error { return a.recountAll(true) }

// recountAll is Recount, of connections that nobody has counted only if it asks for
// them.
func (a *Agent) recountAll(ask bool) error {
	a.applying.Lock() // a target's place must not become that of another
	defer a.applying.Unlock()
	var walks []loader.Walk
	for _, s := range a.scopes {
		if ask || s.changed {
			walks = append(walks, loader.Walk{Netns: s.netns, Always: s.changed})
		}
	}
	if err := a.recount(ask, walks...); err != nil {
		return err
	}
	for _, s := range a.scopes {
		s.changed = false
	}
	return nil
}

// recount is Recount for connections of some namespaces that are not counted, and
// all that are; asked: of no other namespace is there anything to ask. Windows go on
// meanwhile. The lock applying is held.
func (a *Agent) recount(asked bool, walks ...loader.Walk) error {
	a.mu.Lock()
	targets := maps.Clone(a.gate.Targets()) // some may be retired meanwhile
	a.mu.Unlock()
	out, err := a.gate.Recount(targets, walks...)
	if err != nil {
		return err
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	now, err := monotonic()
	if err != nil {
		return err
	}
	a.recounts.made(now, asked, out.Blind > 0)
	if out.Sources+out.Classes > 0 {
		a.log.Warn("the counts of sources or classes were wrong and are corrected", "sources", out.Sources, "classes", out.Classes)
	}
	for _, t := range a.targets {
		d := out.Drift[t.id]
		t.recounted = recounted{drift: d, at: now}
		if d == (loader.Drift{}) {
			continue
		}
		a.log.Warn("the counts were wrong and are corrected", "rule", t.config.Rule.Name, "port", t.config.Port,
			"scope", t.config.Rule.Scope.String(), "in_flight", -d.InFlight, "waiting", -d.Waiting,
			"pending", -d.Pending, "connections", -d.Connections, "idle", -d.Idle)
	}
	return nil
}

func (r *recounted) status(now time.Duration) status.Recount {
	return status.Recount{
		InFlight:    r.drift.InFlight,
		Waiting:     r.drift.Waiting,
		Pending:     r.drift.Pending,
		Connections: r.drift.Connections,
		Idle:        r.drift.Idle,
		SecondsAgo:  (now - r.at).Seconds(),
	}
}
