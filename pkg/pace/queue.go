package pace

import (
	"cmp"
	"container/heap"
	"maps"
	"math"
	"slices"
	"time"
)

const (
	// retryAfter is when a target that was full is asked again without having
	// been woken: a limit may have been raised, or a wake-up lost.
	retryAfter = 20 * time.Millisecond

	// askAgain is when the gate is asked again about a claimed flow of which more
	// packets were on their way, but did not come: the kernel may have dropped
	// them, or the connection is gone.
	askAgain = time.Second

	never = time.Duration(math.MaxInt64)
)

// QueueCounts counts since the beginning, for one target.
type QueueCounts struct {
	Held       uint64 // flows that waited
	Released   uint64 // flows that had their turn
	TimedOut   uint64 // flows that waited for too long
	Overflowed uint64 // flows that there was no place for
	Gone       uint64 // flows whose client had given up when it was their turn
	Silent     uint64 // SYNs that were not sent again when they should have been
	Replaced   uint64 // packets dropped because the same data came again
	Excess     uint64 // packets dropped because their flow, or all together, had too many
}

// Queue is the order in which held flows have their turn. It does no more than
// keep it: what happens goes in by the methods that take the time, and what is
// to be done comes out of [Queue.Next]. Times are of CLOCK_MONOTONIC: they are
// never 0 and do not go back. A Queue is not safe for concurrent use.
type Queue struct {
	targets map[uint32]*queueTarget
	flows   map[Flow]*waiter
	timers  timers
	actions []Action
	next    int // of actions
	bytes   int // that the packets of all flows take
	arrived uint64
}

type queueTarget struct {
	policy  Policy
	counts  QueueCounts
	line    *line
	waiting int           // flows, paced ones that are not in the line yet included
	asked   *waiter       // who an answer is awaited for
	retry   time.Duration // when it was full: do not ask the same class before this
	expired []*waiter     // whose time is over, unless they are let in now
}

// NewQueue returns an empty queue.
func NewQueue() *Queue {
	return &Queue{targets: make(map[uint32]*queueTarget), flows: make(map[Flow]*waiter)}
}

// SetPolicy says how the flows of a target wait from now on; the time of those
// that wait already stays.
func (q *Queue) SetPolicy(target uint32, p Policy) {
	t := q.targets[target]
	if t == nil {
		t = &queueTarget{line: newLine()}
		q.targets[target] = t
	}
	t.policy = p
	t.line.newestFirst = p.NewestFirst
}

// Next returns the next thing to do, in the order in which it must be done.
func (q *Queue) Next() (Action, bool) {
	if q.next == len(q.actions) {
		q.actions, q.next = q.actions[:0], 0
		return Action{}, false
	}
	q.next++
	return q.actions[q.next-1], true
}

// Join adds a packet to the flow that it belongs to, and returns false when no
// such flow waits: the gate then knows whether it is new ([Queue.Arrive]) or
// was let in already ([Queue.Pass]).
func (q *Queue) Join(now time.Duration, f Flow, p Packet) bool {
	w := q.flows[f]
	if w == nil || w.granted {
		return false
	}
	q.addPacket(w, p)
	if f.SYN {
		w.seen(now, p.Seq)
		q.timers.update(w)
	}
	return true
}

// Pass lets a packet go whose flow is not held. That of a request was queued
// because more of it was on its way here, for all that the gate knew: if nobody
// here has let it in, another agent has.
func (q *Queue) Pass(now time.Duration, f Flow, p Packet) {
	q.do(Action{Act: Accept, Flow: f, Packet: p})
	switch w := q.flows[f]; {
	case w != nil && w.granted:
		w.pass(p)
		q.deliver(now, w)
	case w == nil && !f.SYN:
		q.do(Action{Act: Deliver, Flow: f, Device: p.Device, Passed: p.end()})
	}
}

// Delivered says that no more packets of a claimed flow are on their way here.
func (q *Queue) Delivered(f Flow) {
	if w := q.flows[f]; w != nil && w.granted {
		q.forget(w)
	}
}

// Arrive puts a flow that does not wait yet into the queue, with its first
// packet. What belongs to a target without a policy is let go.
func (q *Queue) Arrive(now time.Duration, f Flow, h Hold, p Packet) {
	t := q.targets[f.Target]
	if t == nil {
		q.do(Action{Act: Accept, Flow: f, Packet: p})
		return
	}
	if w := q.flows[f]; w != nil { // granted, but its next request is here
		q.forget(w)
	}
	q.arrived++
	w := &waiter{
		flow: f, target: t, device: p.Device, packets: []Packet{p}, bytes: p.cost(), origin: p.Seq, number: q.arrived,
		arrived: now, release: h.Release, deadline: max(now, h.Release) + t.policy.MaxWait, silent: never,
	}
	if t.policy.Group != nil {
		w.group = t.policy.Group(f.Client.Addr())
	}
	if h.Refused != "" {
		q.refuse(w, h.Refused)
		return
	}
	if t.waiting >= t.policy.MaxWaiting {
		t.counts.Overflowed++
		q.refuse(w, RefusedLimit)
		return
	}
	t.counts.Held++
	q.flows[f] = w
	q.bytes += w.bytes
	t.waiting++
	if f.SYN {
		w.seen(now, p.Seq)
	}
	if h.Release > now {
		w.pacing = true
	} else {
		t.line.push(w)
	}
	w.schedule()
	heap.Push(&q.timers, w)
	q.settle(now, t)
}

// Wake says that a slot of the target may be free.
func (q *Queue) Wake(now time.Duration, target uint32) {
	if t := q.targets[target]; t != nil {
		t.retry = 0
		q.settle(now, t)
	}
}

// Answer takes the outcome of the claim for f.
func (q *Queue) Answer(now time.Duration, f Flow, o Outcome) {
	w := q.flows[f]
	if w == nil || w.target.asked != w {
		return
	}
	t := w.target
	t.asked = nil
	switch o {
	case Full:
		t.line.full(w)
		t.retry = now + retryAfter
	case Gone:
		t.counts.Gone++
		q.leave(w)
		q.verdicts(w, Drop)
	case ClaimedLast:
		t.line.allFull()
		t.retry = now + retryAfter
		fallthrough
	case Claimed:
		t.counts.Released++
		q.grant(now, w)
	}
	q.settle(now, t)
}

// Tick says what time it is; at the latest it is due at [Queue.Due].
func (q *Queue) Tick(now time.Duration) {
	for len(q.timers) > 0 && q.timers[0].next <= now {
		w := q.timers[0]
		switch {
		case w.granted:
			q.deliver(now, w)
			continue
		case w.pacing && w.release <= now:
			w.pacing = false
			w.target.line.push(w)
		case w.deadline <= now:
			w.expired = true
			w.target.expired = append(w.target.expired, w)
		case now-w.silent > synSlack:
			// It was not looked at meanwhile: what came may be unread.
			w.silent = now + synSlack
		default:
			w.target.counts.Silent++
			q.leave(w)
			q.verdicts(w, Drop)
			q.do(Action{Act: GiveUp, Flow: w.flow, Device: w.device})
			continue
		}
		q.timers.update(w)
	}
	for _, t := range q.targets {
		q.settle(now, t)
	}
}

// Due returns when Tick is due, and not ok when nothing waits.
func (q *Queue) Due() (at time.Duration, ok bool) {
	at = never
	if len(q.timers) > 0 {
		at = q.timers[0].next
	}
	for _, t := range q.targets {
		if t.asked == nil && !t.line.empty() {
			at = min(at, t.retry)
		}
	}
	return at, at != never
}

// Clear empties the queue and lets everything in it go.
func (q *Queue) Clear() {
	for len(q.timers) > 0 {
		w := q.timers[0]
		if w.granted {
			q.abandon(w)
			continue
		}
		q.leave(w)
		q.verdicts(w, Accept)
		q.do(Action{Act: GiveUp, Flow: w.flow, Device: w.device})
	}
	for _, t := range q.targets {
		t.asked, t.expired = nil, nil
	}
}

// Drop forgets a target and lets go what waits for it. A SYN has given up its
// place before it goes on, so that it is one that has just arrived; a request
// has not, since only those that are known to wait are counted where they come
// in.
func (q *Queue) Drop(target uint32) {
	t := q.targets[target]
	if t == nil {
		return
	}
	byArrival := func(v, w *waiter) int { return cmp.Compare(v.number, w.number) }
	for _, w := range slices.SortedFunc(maps.Values(q.flows), byArrival) {
		switch {
		case w.target != t:
		case w.granted:
			q.abandon(w)
		default:
			q.leave(w)
			giveUp := Action{Act: GiveUp, Flow: w.flow, Device: w.device}
			if w.flow.SYN {
				q.do(giveUp)
			}
			q.verdicts(w, Accept)
			if !w.flow.SYN {
				q.do(giveUp)
			}
		}
	}
	delete(q.targets, target)
}

// Waiting returns how many flows of a target wait.
func (q *Queue) Waiting(target uint32) int {
	if t := q.targets[target]; t != nil {
		return t.waiting
	}
	return 0
}

// Counts returns what was counted for a target.
func (q *Queue) Counts(target uint32) QueueCounts {
	if t := q.targets[target]; t != nil {
		return t.counts
	}
	return QueueCounts{}
}

// settle asks for the head of a target's line, or else refuses those whose
// time is over: not before, since they may still be let in.
func (q *Queue) settle(now time.Duration, t *queueTarget) {
	if t.asked != nil {
		return
	}
	if t.retry <= now {
		t.line.askAgain()
	}
	if w := t.line.head(); w != nil {
		t.asked = w
		q.do(Action{Act: Claim, Flow: w.flow, Device: w.device, Arrived: w.arrived, Release: w.release})
		return
	}
	for _, w := range t.expired {
		if !w.left {
			t.counts.TimedOut++
			q.leave(w)
			q.refuse(w, RefusedTimeout)
		}
	}
	t.expired = t.expired[:0]
}

// grant lets the packets of a flow go. More may be on their way here, but for a
// SYN.
func (q *Queue) grant(now time.Duration, w *waiter) {
	q.leave(w)
	w.target.line.hadTurn(w)
	q.verdicts(w, Accept)
	if w.flow.SYN {
		return
	}
	w.granted = true
	w.passed = w.packets[0].Seq
	for _, p := range w.packets {
		w.pass(p)
	}
	w.packets = nil
	q.flows[w.flow] = w
	heap.Push(&q.timers, w)
	q.deliver(now, w)
}

// deliver asks whether more packets of a granted flow are on their way.
func (q *Queue) deliver(now time.Duration, w *waiter) {
	q.do(Action{Act: Deliver, Flow: w.flow, Device: w.device, Passed: w.passed})
	w.again = now + askAgain
	q.timers.update(w)
}

// abandon leaves what more of a granted flow is on its way to the gate.
func (q *Queue) abandon(w *waiter) {
	q.do(Action{Act: Deliver, Flow: w.flow, Device: w.device, Passed: w.passed})
	q.forget(w)
}

// forget ends what is known of a granted flow.
func (q *Queue) forget(w *waiter) {
	heap.Remove(&q.timers, w.index)
	delete(q.flows, w.flow)
}

func (q *Queue) refuse(w *waiter, why Refusal) {
	if w.target.policy.Reset {
		q.do(Action{Act: Reset, Flow: w.flow, Packet: w.packets[len(w.packets)-1]})
	}
	q.verdicts(w, Drop)
	q.do(Action{Act: GiveUp, Flow: w.flow, Device: w.device, Refused: why})
}

// leave takes a flow out of the queue.
func (q *Queue) leave(w *waiter) {
	w.left = true
	q.bytes -= w.bytes
	w.target.line.remove(w)
	w.target.waiting--
	heap.Remove(&q.timers, w.index)
	delete(q.flows, w.flow)
}

func (q *Queue) verdicts(w *waiter, act Act) {
	for _, p := range w.packets {
		q.do(Action{Act: act, Flow: w.flow, Packet: p})
	}
}

func (q *Queue) do(a Action) { q.actions = append(q.actions, a) }
