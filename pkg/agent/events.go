package agent

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"headgate/pkg/events"
	"headgate/pkg/loader"
	"headgate/pkg/pace"
)

const (
	// toldAWindow is how many refusals of a target by the holder are told of in
	// a window; the programs tell of as many of their own in a tick.
	toldAWindow = 4

	// changesEvery is the least time from one change of a limit that is told of
	// to the next: under pressure it moves in every window.
	changesEvery = time.Second
)

// refusal is somebody who was refused.
type refusal struct {
	target uint32
	at     time.Duration // CLOCK_MONOTONIC
	client netip.AddrPort
	reason string
	letIn  bool
}

// told is what was told of a target.
type told struct {
	refusals uint64 // counted until the last window, told or not
	silent   int64  // of these, not told of yet; below 0: told of before they were counted
	last     refusal

	perSecond float64 // refused in the last second, and counted until then
	second    uint64

	limit   int // what the last event about it said
	limitAt time.Duration
	before  int    // limit of the last window
	step    int    // the largest from one window to the next since limitAt
	reason  string // of that
}

// heldRefusals gathers whom the holders refuse until the next window. It is
// safe for concurrent use.
type heldRefusals struct {
	mu  sync.Mutex
	n   map[uint32]int
	all []refusal
}

func (h *heldRefusals) add(f pace.Flow, why pace.Refusal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n == nil {
		h.n = make(map[uint32]int)
	}
	if h.n[f.Target] == toldAWindow {
		return
	}
	h.n[f.Target]++
	at, err := monotonic()
	if err != nil {
		return
	}
	h.all = append(h.all, refusal{target: f.Target, at: at, client: f.Client, reason: string(why)})
}

// take returns what was gathered, and begins anew.
func (h *heldRefusals) take() []refusal {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.all
	h.all = nil
	clear(h.n)
	return all
}

// Events returns what happens, for others to read and to publish.
func (a *Agent) Events() *events.Bus { return a.events }

// tell publishes what has happened since the last window, which the targets
// have taken in. The lock is held.
func (a *Agent) tell(now time.Duration) error {
	all := a.held.take()
	err := a.refusals.Each(func(r loader.Refusal) {
		all = append(all, refusal{target: r.Target, at: r.At, client: r.Client, reason: string(r.Reason), letIn: r.LetIn})
	})
	for _, t := range a.targets {
		t.countRefusals()
		a.tellCleared(t)
		a.tellLimit(t, now)
	}
	if len(all) == 0 {
		return err
	}
	byID := make(map[uint32]*target, len(a.targets))
	for _, t := range a.targets {
		byID[t.id] = t
	}
	left := make(map[uint32]int)
	for _, r := range all {
		left[r.target]++
	}
	for _, r := range all {
		left[r.target]--
		if t := byID[r.target]; t != nil {
			a.tellRefusal(t, r, now, left[r.target] == 0)
		}
	}
	return err
}

// countRefusals takes in how many were refused in the last window.
func (t *target) countRefusals() {
	n := refusedOf(t.last) + t.inVain()
	t.told.silent += int64(n - t.told.refusals)
	t.told.refusals = n
}

func refusedOf(r loader.Reading) uint64 {
	return r.Rejected + r.RejectedPace + r.RejectedSource + r.RejectedFlood + r.WouldReject
}

// meterRefusals is called once a second.
func (t *target) meterRefusals() {
	t.told.perSecond = float64(t.told.refusals-t.told.second) / meterInterval.Seconds()
	t.told.second = t.told.refusals
}

// tellRefusal publishes a refusal. The last one of a window says how many were
// left out.
func (a *Agent) tellRefusal(t *target, r refusal, now time.Duration, last bool) {
	t.told.last = r
	t.told.silent--
	e := t.event(events.Rejection)
	if r.reason == string(pace.RefusedTimeout) {
		e.Type = events.HoldTimeout
	}
	e.Time = time.Now().Add(r.at - now)
	e.Client, e.Reason, e.LetIn = &r.client, r.reason, r.letIn
	if last && t.told.silent > 0 {
		e.LeftOut = uint64(t.told.silent)
		t.told.silent = 0
	}
	a.events.Publish(e)
}

// tellCleared publishes that the limit is that of the algorithm again, whether or
// not that is another number.
func (a *Agent) tellCleared(t *target) {
	if why := t.overridden.ended; why != "" {
		t.overridden.ended = ""
		a.sayOf(t, "%s: the limit is that of %s again, %d", why, t.config.Rule.Limit.Algorithm, t.decision.Limit)
	}
}

// tellLimit publishes a change of a limit, unless one was published a moment
// ago. Several changes are told of as one, with the reason of the largest.
func (a *Agent) tellLimit(t *target, now time.Duration) {
	limit := t.decision.Limit
	if o := t.overridden.limit; o != nil {
		limit = *o
	}
	if step := max(limit-t.told.before, t.told.before-limit); step > 0 && step >= t.told.step {
		t.told.step, t.told.reason = step, t.change.reason
	}
	t.told.before = limit
	if limit == t.told.limit || now-t.told.limitAt < changesEvery {
		return
	}
	e := t.event(events.LimitChange)
	e.From, e.To, e.Reason = new(t.told.limit), new(limit), t.told.reason
	t.told.limit, t.told.limitAt, t.told.step = limit, now, 0
	a.events.Publish(e)
}

// event is one about the target.
func (t *target) event(typ events.Type) events.Event {
	rule := t.config.Rule
	return events.Event{Type: typ, Rule: rule.Name, Scope: rule.Scope.String(), Port: t.config.Port, Unit: string(rule.Unit)}
}

// trouble publishes that something of ours in the kernel does not do its work,
// or does it again.
func (a *Agent) trouble(ok bool, hook, message string) {
	a.events.Publish(events.Event{Type: events.HookTrouble, OK: &ok, Hook: hook, Message: message})
}

// say publishes a sentence that is about no target.
func (a *Agent) say(typ events.Type, ok bool, message string) {
	a.events.Publish(events.Event{Type: typ, OK: &ok, Message: message})
}

// sayOf publishes what somebody changed of a target by hand.
func (a *Agent) sayOf(t *target, format string, args ...any) {
	e, ok := t.event(events.Operator), true
	e.OK, e.Message = &ok, fmt.Sprintf(format, args...)
	a.events.Publish(e)
}
