package load

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Pool is connections that clients keep and share, as those that drivers of
// databases have (such as HikariCP): who finds none free waits for one, and
// meanwhile connections are added, one after the other.
type Pool struct {
	// Open opens a connection, and logs in.
	Open func(context.Context) (*Session, error)

	Max     int           // connections at once
	Pause   time.Duration // until the next one is tried when one could not be opened
	Acquire time.Duration // how long a client waits for a free one; then it has TimedOut
	Timeout time.Duration // how long a client waits for its answer, from its scheduled arrival; then it closes
}

// Run works through the schedule: each request is turns said on a connection of
// the pool. It calls report for each that has ended, one at a time, and returns
// when all have. A connection on which a request did not end well is closed.
func (p Pool) Run(ctx context.Context, arrivals Arrivals, turns []Turn, report func(Result)) error {
	r := &poolRun{Pool: p, free: make(chan *Session, p.Max), wanted: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(ctx)
	var adder, clients sync.WaitGroup
	adder.Go(func() { r.add(ctx) })

	var mu sync.Mutex
	begin := time.Now()
	for at, ok := arrivals(); ok && ctx.Err() == nil; at, ok = arrivals() {
		time.Sleep(time.Until(begin.Add(at)))
		clients.Go(func() {
			outcome := r.request(begin.Add(at), turns)
			took := time.Since(begin.Add(at))
			mu.Lock()
			defer mu.Unlock()
			report(Result{At: at, Latency: took, Outcome: outcome})
		})
	}
	clients.Wait()
	err := ctx.Err()
	cancel()
	adder.Wait()
	close(r.free)
	for s := range r.free {
		_ = s.Close()
	}
	return err
}

type poolRun struct {
	Pool
	free    chan *Session
	wanted  chan struct{} // somebody waits for a connection, or one is gone
	open    atomic.Int64
	waiting atomic.Int64
}

// add adds connections while somebody waits and there are not too many.
func (r *poolRun) add(ctx context.Context) {
	for {
		select {
		case <-r.wanted:
		case <-ctx.Done():
			return
		}
		for ctx.Err() == nil && r.waiting.Load() > 0 && r.open.Load() < int64(r.Max) {
			within, cancel := context.WithTimeout(ctx, r.Timeout)
			s, err := r.Open(within)
			cancel()
			if err != nil {
				select {
				case <-time.After(r.Pause):
				case <-ctx.Done():
				}
				continue
			}
			r.open.Add(1)
			r.free <- s
		}
	}
}

func (r *poolRun) want() {
	select {
	case r.wanted <- struct{}{}:
	default:
	}
}

func (r *poolRun) request(due time.Time, turns []Turn) Outcome {
	s := r.acquire(due)
	if s == nil {
		return TimedOut
	}
	_ = s.SetDeadline(due.Add(r.Timeout))
	err := s.Say(turns...)
	if err == nil {
		r.free <- s
		return Answered
	}
	_ = s.Close()
	r.open.Add(-1)
	r.want()
	return OutcomeOf(err)
}

// acquire returns nil when there was none for so long.
func (r *poolRun) acquire(due time.Time) *Session {
	select {
	case s := <-r.free:
		return s
	default:
	}
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	r.want()
	select {
	case s := <-r.free:
		return s
	case <-time.After(time.Until(due.Add(r.Acquire))):
		return nil
	}
}
