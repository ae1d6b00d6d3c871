package agent

import (
	"fmt"
	"time"

	"headgate/pkg/events"
	"headgate/pkg/loader"
	"headgate/pkg/metrics"
	"headgate/pkg/status"
)

// Status returns the state as of the last window.
func (a *Agent) Status() status.Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status(a.reportTime())
}

// reportTime is when a report is made.
func (a *Agent) reportTime() time.Duration {
	now, err := monotonic()
	if err != nil {
		return a.renewed
	}
	return now
}

func (a *Agent) status(now time.Duration) status.Status {
	s := status.Status{
		Version:      a.version,
		Mode:         string(a.cfg.Mode),
		LeaseSeconds: a.cfg.Lease.Seconds(),

		LeaseAgeSeconds: max(now-a.renewed, 0).Seconds(),
		Capabilities:    make(map[string]bool),
		Problems:        a.notReady(),
		Targets:         make([]status.Target, 0, len(a.targets)),
	}
	for c, able := range a.gate.Capabilities() {
		s.Capabilities[string(c)] = able
	}
	for _, t := range a.targets {
		s.Targets = append(s.Targets, t.status(now))
	}
	for _, l := range a.found.Left {
		s.Unprotected = append(s.Unprotected, status.Unprotected(l))
	}
	a.checks.report(&s)
	if r := a.reloads; !r.at.IsZero() {
		s.Reload = &status.Reload{Successful: r.err == nil, SecondsAgo: time.Since(r.at).Seconds()}
		if r.err != nil {
			s.Reload.Error = r.err.Error()
		}
	}
	return s
}

// Snapshot returns what a scrape of the metrics reports.
func (a *Agent) Snapshot() metrics.Snapshot {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.reportTime()
	s := metrics.Snapshot{
		Status:           a.status(now),
		LeaseAge:         now - a.renewed,
		Recounts:         a.recounts.total,
		ProgramsAttached: make(map[string]int),
		MapFull:          map[string]uint64{"pendings": 0, "conns": 0, "holds": 0, "wakes": 0, "source_counts": 0, "queue": 0},
		ReloadFailed:     a.reloads.err != nil,
		Loaded:           a.reloads.good,
	}
	s.Status.Capabilities[string(capTrim)] = a.trims
	for hook, n := range a.gate.Attached() {
		s.ProgramsAttached[string(hook)] = n
	}
	s.Shadowed = a.checks.shadowed()
	stats := a.events.Stats()
	s.Events, s.EventsLost = make(map[string]uint64), map[string]uint64{"kernel": 0, "reader": stats.Missed}
	for _, typ := range events.Types() {
		s.Events[string(typ)] = stats.Published[typ]
	}
	for _, t := range a.targets {
		d := metrics.Detail{
			Service: t.service.sum.Clone(),
			TCPRTT:  t.trips.sum.Clone(),
			Windows: t.windows.byOutcome(),
		}
		if t.holder != nil {
			d.Hold = t.waits.sum.Clone()
		}
		s.Details = append(s.Details, d)
		s.MapFull["pendings"] += t.last.PendingFull
		s.MapFull["conns"] += t.last.ConnFull
		s.MapFull["holds"] += t.last.HoldFull
		s.MapFull["wakes"] += t.last.Unwoken + t.last.Untold + t.last.Untrimmed
		s.MapFull["source_counts"] += t.last.SourceFull
		s.EventsLost["kernel"] += t.last.EventsLost
	}
	for _, scope := range a.scopes {
		if h := scope.holding; h != nil {
			s.ProgramsAttached[hookIngress] += len(h.devices.Attached())
			s.MapFull["queue"] += h.holder.Stats().Missed
			if s.Handover == nil {
				s.Handover = new(metrics.Histogram)
			}
			s.Handover.Merge(&h.handover.sum)
		}
	}
	return s
}

// Alive says whether windows run: whether the lease is fresh.
func (a *Agent) Alive() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, err := monotonic()
	return err == nil && now-a.renewed < a.cfg.Lease
}

// NotReady returns why the targets are not protected now; none when they are.
func (a *Agent) NotReady() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.notReady()
}

func (a *Agent) notReady() []string {
	reasons := []string{}
	if a.failure != nil {
		reasons = append(reasons, fmt.Sprintf("the last window failed: %v", a.failure))
	}
	if now, err := monotonic(); err == nil && now-a.renewed > a.cfg.Lease {
		reasons = append(reasons, fmt.Sprintf("the lease has not been renewed for %v: every gate is open", now-a.renewed))
	}
	attached := a.gate.Attached()
	if attached[loader.HookSockops] == 0 {
		reasons = append(reasons, "the program that counts connections is not attached")
	}
	if n := attached[loader.HookLookup]; n < len(a.scopes) {
		reasons = append(reasons, fmt.Sprintf("admission is attached to %d of %d network namespaces", n, len(a.scopes)))
	}
	for _, t := range a.checks.troubles {
		if t.Hook != string(loader.HookState) {
			reasons = append(reasons, t.Hook+": "+t.Trouble)
		}
	}
	reasons = append(reasons, a.found.Problems...)
	for _, m := range a.missing {
		reasons = append(reasons, fmt.Sprintf("network namespace %s is gone: %v", m.name, m.reason))
	}
	for _, s := range a.scopes {
		if s.holding == nil {
			continue
		}
		if err := s.holding.trouble; err != nil {
			reasons = append(reasons, fmt.Sprintf("scope %s: nothing is held: %v", s, err))
		}
		for _, f := range s.holding.devices.Failed() {
			reasons = append(reasons, fmt.Sprintf("scope %s: nothing is held that comes in on %s: %v", s, f.Name, f.Err))
		}
	}
	return reasons
}
