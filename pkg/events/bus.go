package events

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"
)

// Kept is how many events a [Bus] of an agent keeps: some 500 KiB.
const Kept = 2048

// ErrClosed means that there will be no more events.
var ErrClosed = errors.New("no more events")

// Bus keeps the last events. It is safe for concurrent use, and neither a
// publisher nor the memory it takes depends on how many read, or how slowly.
// The nil Bus forgets what is published, and has no readers.
type Bus struct {
	clock func() time.Time

	mu     sync.Mutex
	ring   []Event
	last   uint64        // number of the newest event
	news   chan struct{} // closed when there is one more; nil while nobody waits
	closed bool
	counts map[Type]uint64
	missed uint64
}

// NewBus returns a Bus that keeps so many events, at least one. clock is
// [time.Now].
func NewBus(kept int, clock func() time.Time) *Bus {
	return &Bus{clock: clock, ring: make([]Event, max(kept, 1)), counts: make(map[Type]uint64)}
}

// Publish adds an event, with its number and, unless it has one, the time.
func (b *Bus) Publish(e Event) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	if e.Time.IsZero() {
		e.Time = b.clock()
	}
	b.last++
	e.Number = b.last
	b.ring[e.Number%uint64(len(b.ring))] = e
	b.counts[e.Type]++
	b.wake()
}

func (b *Bus) wake() {
	if b.news != nil {
		close(b.news)
		b.news = nil
	}
}

// Close ends all readers once they have read what is there.
func (b *Bus) Close() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.wake()
}

// Stats is what went through a [Bus].
type Stats struct {
	Published map[Type]uint64
	Missed    uint64 // events that readers were too slow for, of all readers together
}

// Stats returns what went through until now.
func (b *Bus) Stats() Stats {
	if b == nil {
		return Stats{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return Stats{Published: maps.Clone(b.counts), Missed: b.missed}
}

// Reader reads a [Bus] from some place on. It is not safe for concurrent use,
// and needs no closing.
type Reader struct {
	bus  *Bus
	next uint64
}

// Follow returns a reader of what is published from now on.
func (b *Bus) Follow() *Reader {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &Reader{bus: b, next: b.last + 1}
}

// After returns a reader of what is kept of the events behind a number; 0 is
// all that is kept. A number that was not reached yet, as of an agent before
// this one, is as good as 0.
func (b *Bus) After(number uint64) *Reader {
	b.mu.Lock()
	defer b.mu.Unlock()
	if number > b.last {
		number = 0
	}
	if number == 0 {
		number = b.last - min(b.last, uint64(len(b.ring)))
	}
	return &Reader{bus: b, next: number + 1}
}

// Poll returns the next event, and false when there is none yet. A reader that
// is too slow gets one of type [Missed] in place of all that is gone.
func (r *Reader) Poll() (Event, bool) {
	r.bus.mu.Lock()
	defer r.bus.mu.Unlock()
	return r.poll()
}

func (r *Reader) poll() (Event, bool) {
	b := r.bus
	if r.next > b.last {
		return Event{}, false
	}
	if kept := uint64(len(b.ring)); r.next+kept <= b.last {
		first := b.last - kept + 1
		gone := first - r.next
		r.next = first
		b.missed += gone
		b.counts[Missed]++
		return Event{Number: first - 1, Time: b.clock(), Type: Missed, LeftOut: gone}, true
	}
	e := b.ring[r.next%uint64(len(b.ring))]
	r.next++
	return e, true
}

// Next waits for the next event. The error is that of the context, or
// [ErrClosed].
func (r *Reader) Next(ctx context.Context) (Event, error) {
	for {
		e, ok, news := r.pollOrNews()
		if ok {
			return e, nil
		}
		if news == nil {
			return Event{}, ErrClosed
		}
		select {
		case <-ctx.Done():
			return Event{}, ctx.Err()
		case <-news:
		}
	}
}

func (r *Reader) pollOrNews() (Event, bool, <-chan struct{}) {
	b := r.bus
	b.mu.Lock()
	defer b.mu.Unlock()
	if e, ok := r.poll(); ok || b.closed {
		return e, ok, nil
	}
	if b.news == nil {
		b.news = make(chan struct{})
	}
	return Event{}, false, b.news
}
