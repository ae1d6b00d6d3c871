package agent

import (
	"maps"
	"slices"
	"time"

	"headgate/pkg/loader"
	"headgate/pkg/status"
)

// The counts are compared with what there is so often: each minute, for they
// are right unless somebody has had his hands in the kernel; and each second
// while there are connections whose end nothing else tells.
const (
	recountInterval      = time.Minute
	blindRecountInterval = time.Second
)

// recounts is what is known of those that were made.
type recounts struct {
	total uint64
	next  time.Duration
}

// recounted is what the last recount has found of a target.
type recounted struct {
	drift loader.Drift
	at    time.Duration
}

// recountDue says whether it is time for one.
func (a *Agent) recountDue() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, err := monotonic()
	return err == nil && now >= a.recounts.next
}

// Recount compares the counts of every target with the sockets that there are,
// now, and corrects what is certain to be wrong. Connections that nobody has
// counted are; and those that are counted as they were to be before a change are
// counted as they are to be.
func (a *Agent) Recount() error {
	a.applying.Lock() // a target's place must not become that of another
	defer a.applying.Unlock()
	var walks []loader.Walk
	for _, s := range a.scopes {
		walks = append(walks, loader.Walk{Netns: s.netns, Always: s.changed})
	}
	if err := a.recount(walks...); err != nil {
		return err
	}
	for _, s := range a.scopes {
		s.changed = false
	}
	return nil
}

// recount is Recount for connections of some namespaces that are not counted,
// and all that are. Windows go on meanwhile. The lock applying is held.
func (a *Agent) recount(walks ...loader.Walk) error {
	a.mu.Lock()
	ids := slices.Collect(maps.Values(a.gate.Targets()))
	a.mu.Unlock()
	out, err := a.gate.Recount(ids, walks...)
	if err != nil {
		return err
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	now, err := monotonic()
	if err != nil {
		return err
	}
	a.recounts.total++
	a.recounts.next = now + recountInterval
	if out.Blind > 0 {
		a.recounts.next = now + blindRecountInterval
	}
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
