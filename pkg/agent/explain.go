package agent

import (
	"time"

	"headgate/pkg/explain"
)

// Explain returns why the limit of a target is what it is; false when there is
// no such target. scope is as in its status.
func (a *Agent) Explain(scope string, port uint16) (*explain.Explanation, bool) {
	trouble := a.NotReady()
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.reportTime()
	for _, t := range a.targets {
		if t.config.Port != port || t.config.Rule.Scope.String() != scope {
			continue
		}
		f := t.facts(now)
		f.Trouble = trouble
		return explain.New(f), true
	}
	return nil, false
}

// facts is what an explanation of the target is made from.
func (t *target) facts(now time.Duration) explain.Facts {
	f := explain.Facts{
		Target:           t.status(now),
		Terms:            t.algo.Terms(),
		Base:             t.decision.Limit,
		Idle:             t.enforced(t.decision.Limit) - t.decision.Limit,
		Listening:        t.listener.present,
		Timed:            t.timed,
		RefusedPerSecond: t.told.perSecond,
	}
	if o := f.Target.Override; o != nil && o.Limit != nil {
		f.Idle = 0 // who sets a limit by hand counts all
		f.Override = &explain.Override{Limit: *o.Limit}
		if o.ExpiresInSeconds != nil {
			f.Override.SecondsLeft = *o.ExpiresInSeconds
		}
	}
	p := t.config.Rule.Limit.Params
	if p.Min != nil {
		f.Min = *p.Min
	}
	if p.Max != nil {
		f.Max = *p.Max
	}
	if r := t.told.last; r.client.IsValid() {
		f.LastRefused = &explain.Refused{
			Client: r.client, Reason: r.reason, LetIn: r.letIn,
			SecondsAgo: max(now-r.at, 0).Seconds(),
		}
	}
	return f
}
