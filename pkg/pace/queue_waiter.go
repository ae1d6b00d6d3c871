package pace

import (
	"container/heap"
	"container/list"
	"time"
)

// waiter is a flow in the queue, or one that has just left it with a slot and
// may have more packets coming.
type waiter struct {
	flow    Flow
	target  *queueTarget
	device  uint32   // that its newest packet came in by
	packets []Packet // by sequence number
	bytes   int      // that they take
	origin  uint32   // sequence number of the first that came
	number  uint64   // of the arrival

	arrived  time.Duration
	release  time.Duration
	deadline time.Duration

	// Once it has its turn: what is behind the last that was let go, and when to
	// ask again whether there is more.
	granted bool
	passed  uint32
	again   time.Duration

	// Of a SYN: when it came first, and when it is overdue.
	first  time.Duration
	isn    uint32
	silent time.Duration

	pacing  bool // its slot is yet to come
	expired bool // its deadline was
	left    bool

	group Group
	place *list.Element // in the line
	next  time.Duration // when something is due for it
	index int           // in the timers
}

// The back-off of SYNs doubles from 1 s (RFC 6298), in Linux since 6.5 after
// some that come each second; of older systems, and where the first has been
// lost, from 3 s. In all of these a client is silent for at most that much
// longer than it has tried so far, also when its second SYN is lost.
const (
	synRetry = 3 * time.Second

	// synSlack is how late a SYN may come.
	synSlack = 500 * time.Millisecond
)

// seen notes that the client has sent its SYN, and computes when the next is
// overdue. Another initial sequence number is another attempt. Clients on this
// host send theirs again, too, though the first is in a queue of it: the kernel
// takes it off the client's account before it comes there.
func (w *waiter) seen(now time.Duration, isn uint32) {
	if w.first == 0 || isn != w.isn {
		w.first, w.isn = now, isn
	}
	w.silent = now + (now - w.first) + synRetry + synSlack
}

// schedule computes when something is due.
func (w *waiter) schedule() {
	switch {
	case w.granted:
		w.next = w.again
		return
	case w.expired:
		w.next = never
		return
	}
	w.next = min(w.deadline, w.silent)
	if w.pacing {
		w.next = min(w.next, w.release)
	}
}

// timers is a heap of all waiters by what is due first.
type timers []*waiter

func (t timers) Len() int { return len(t) }

func (t timers) Less(i, j int) bool {
	if t[i].next != t[j].next {
		return t[i].next < t[j].next
	}
	return t[i].number < t[j].number
}

func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i, j
}

func (t *timers) Push(x any) {
	w := x.(*waiter)
	w.index = len(*t)
	*t = append(*t, w)
}

func (t *timers) Pop() any {
	last := len(*t) - 1
	w := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	return w
}

// update reorders after the times of w have changed.
func (t *timers) update(w *waiter) {
	w.schedule()
	heap.Fix(t, w.index)
}
