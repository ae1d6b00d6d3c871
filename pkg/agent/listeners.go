package agent

import (
	"errors"
	"fmt"
	"time"

	"headgate/pkg/scope"
)

// forgetAfter is how long a cgroup is timed on when no listener is seen in it:
// connections may outlive their listener, and servers restart. One that is gone is
// forgotten at once.
const forgetAfter = time.Minute

// owner is a cgroup whose packets are timed.
type owner struct {
	path string
	seen time.Duration
}

func (a *Agent) watchAllListeners(now time.Duration) error {
	var errs []error
	for _, s := range a.scopes {
		if err := a.watchListeners(s, s.targets, now); err != nil {
			errs = append(errs, fmt.Errorf("scope %s: %w", s, err))
		}
	}
	for id, o := range a.owners {
		if now-o.seen > forgetAfter || o.seen != now && !scope.IsCgroup(o.path, id) {
			delete(a.owners, id)
			errs = append(errs, a.gate.DetachService(id))
		}
	}
	return errors.Join(errs...)
}

// watchListeners looks at the listeners of targets of a scope, by port: their
// accept queues, and the cgroups that their connections will belong to.
func (a *Agent) watchListeners(s *scopeState, targets map[uint16]*target, now time.Duration) error {
	var listeners []scope.Listener
	var overflows uint64
	var synQueue scope.SYNQueue
	err := s.netns.Do(func() (err error) {
		if overflows, err = scope.Overflows(); err != nil {
			return err
		}
		if synQueue, err = scope.ReadSYNQueue(); err != nil {
			return err
		}
		listeners, err = scope.Listeners()
		return err
	})
	if err != nil {
		return err
	}
	queues := make(map[uint16]listenerState)
	var errs []error
	for _, l := range listeners {
		if targets[l.Port] == nil {
			continue
		}
		q := queues[l.Port]
		q.present = true
		q.overflowed = overflows
		q.queued += l.Queued
		q.backlog += l.Backlog
		q.dropped += l.Dropped
		q.strangers += synQueue.Strangers(l.Backlog)
		errs = append(errs, a.own(l.CgroupID, now))
		q.timed = (q.timed || !queues[l.Port].present) && a.owners[l.CgroupID] != nil
		queues[l.Port] = q
	}
	for port, t := range targets {
		t.listen(queues[port])
		a.noteUntimed(t, now)
	}
	return errors.Join(errs...)
}

// noteUntimed says that the service time of a port is not measured, if that is
// not over with the next look. A socket belongs to the cgroup of the process that
// made it, wherever that moved: the cgroup may be gone while the socket is not.
func (a *Agent) noteUntimed(t *target, now time.Duration) {
	l := &t.listener
	switch {
	case !l.present || l.timed:
		t.untimed = untimed{}
	case t.untimed.since == 0:
		t.untimed.since = now
	case !t.untimed.told && now-t.untimed.since >= meterInterval:
		t.untimed.told = true
		a.log.Warn("the service time is not measured: the cgroup in which the server opened its port is gone, or cannot be seen from here; restart the server",
			"rule", t.config.Rule.Name, "port", t.config.Port)
	}
}

// untimed is since when a port has had a listener whose packets are not seen.
type untimed struct {
	since time.Duration // 0: they are
	told  bool
}

// own has the packets of a cgroup timed.
func (a *Agent) own(id uint64, now time.Duration) error {
	if o := a.owners[id]; o != nil {
		o.seen = now
		return nil
	}
	path, err := scope.CgroupPath(a.cgroup2, id)
	if errors.Is(err, scope.ErrNoCgroup) {
		return nil // gone since, or not visible from here: the next look tells
	}
	if err != nil {
		return err
	}
	if err := a.gate.AttachService(path, id); err != nil {
		return err
	}
	a.owners[id] = &owner{path: path, seen: now}
	if path == a.cgroup2 {
		a.log.Warn("a protected server is in the root cgroup: its programs look at the packets of every process; give the server a cgroup of its own (a systemd unit, a container) to spare the others", "cgroup", path)
	} else {
		a.log.Info("timing the packets of a cgroup", "cgroup", path)
	}
	return nil
}
