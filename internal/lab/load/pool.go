package load

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Pool is connections that clients keep and share. It grows while somebody waits
// for one, by one after the other, and what is lost is replaced in the same way.
type Pool struct {
	// Open opens a connection, and logs in. It has Timeout for that.
	Open func(context.Context) (*Session, error)

	Max     int           // connections at once, at least 1
	Pause   time.Duration // until the next one is tried when one could not be opened; 0: none
	Acquire time.Duration // how long a client waits for a free one, from its scheduled arrival; then it has TimedOut
	Timeout time.Duration // how long a client waits for its answer, from its scheduled arrival; then it closes
}

// PoolUse is what a pool has done.
type PoolUse struct {
	Opened int `json:"opened"` // connections in all
	Open   int `json:"open"`   // connections when the last request arrived

	// Late counts requests that got the CPU so late that the client gave up at
	// once, having found no free connection: where server and clients share a
	// machine, the server's load is in the way of the clients too.
	Late int `json:"late"`
}

// Run works through the schedule: each request is turns said on a connection of
// the pool, which is empty at first. It calls report for each that has ended, one
// at a time, and returns when all have, or early with the context's error. A
// connection on which a request did not end well is closed.
func (p Pool) Run(ctx context.Context, arrivals Arrivals, turns []Turn, report func(Result)) (PoolUse, error) {
	r := &poolRun{Pool: p, wanted: make(chan struct{}, 1)}
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
	r.mu.Lock()
	r.use.Open = r.open
	r.mu.Unlock()
	clients.Wait()
	err := ctx.Err()
	cancel()
	adder.Wait()
	for _, s := range r.free {
		_ = s.Close()
	}
	return r.use, err
}

type poolRun struct {
	Pool
	wanted chan struct{} // more wait than there are connections for, or one is gone

	mu      sync.Mutex
	open    int
	free    []*Session
	waiting []chan *Session // each takes one, the first of them first
	use     PoolUse
}

// add adds connections while somebody waits and there are not too many.
func (r *poolRun) add(ctx context.Context) {
	for {
		select {
		case <-r.wanted:
		case <-ctx.Done():
			return
		}
		for r.wants() {
			within, cancel := context.WithTimeout(ctx, r.Timeout)
			s, err := r.Open(within)
			cancel()
			if err == nil {
				r.mu.Lock()
				r.open++
				r.use.Opened++
				r.mu.Unlock()
				r.put(s)
				continue
			}
			select {
			case <-time.After(r.Pause):
			case <-ctx.Done():
				return
			}
		}
	}
}

func (r *poolRun) wants() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting) > 0 && r.open < r.Max
}

func (r *poolRun) request(due time.Time, turns []Turn) Outcome {
	s := r.take(due)
	if s == nil {
		return TimedOut
	}
	_ = s.SetDeadline(due.Add(r.Timeout))
	err := s.Say(turns...)
	if err == nil {
		r.put(s)
		return Answered
	}
	_ = s.Close()
	r.mu.Lock()
	r.open--
	r.mu.Unlock()
	r.want()
	return outcomeOf(err)
}

func (r *poolRun) want() {
	select {
	case r.wanted <- struct{}{}:
	default:
	}
}

// put gives a connection to who waits, or keeps it.
func (r *poolRun) put(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		r.free = append(r.free, s)
		return
	}
	r.waiting[0] <- s
	r.waiting = r.waiting[1:]
}

// take returns nil when there was no connection for so long.
func (r *poolRun) take(due time.Time) *Session {
	r.mu.Lock()
	if n := len(r.free); n > 0 {
		s := r.free[n-1]
		r.free = r.free[:n-1]
		r.mu.Unlock()
		return s
	}
	left := time.Until(due.Add(r.Acquire))
	if left <= 0 {
		r.use.Late++
		r.mu.Unlock()
		return nil
	}
	mine := make(chan *Session, 1)
	r.waiting = append(r.waiting, mine)
	r.mu.Unlock()
	r.want()
	select {
	case s := <-mine:
		return s
	case <-time.After(left):
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.waiting, mine); i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
		return nil
	}
	return <-mine // just now
}
