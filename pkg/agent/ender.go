package agent

import (
	"container/heap"
	"log/slog"
	"math"
	"net/netip"
	"sync"
	"time"

	"headgate/pkg/loader"
	"headgate/pkg/scope"
)

// ender ends the requests of a scope whose response has been idle for as long
// as their rule says. The programs tell when a response begins, and each is
// looked at when it may be over; no timer runs in the kernel.
type ender struct {
	claimer *loader.Claimer
	log     *slog.Logger
	news    chan struct{} // holds one: there is something to look at
	stop    chan struct{}
	done    chan struct{}

	mu    sync.Mutex
	idle  map[uint32]time.Duration // by target
	all   responses
	known map[flow]bool // those in all: a connection is in it once
}

// flow is a connection of a response.
type flow struct {
	client, server netip.AddrPort
	device         uint32
}

func newEnder(g *loader.Gate, ns *scope.Netns, log *slog.Logger) (*ender, error) {
	e := &ender{
		log:   log,
		news:  make(chan struct{}, 1),
		stop:  make(chan struct{}),
		done:  make(chan struct{}),
		known: make(map[flow]bool),
	}
	var err error
	if e.claimer, err = g.NewClaimer(ns); err != nil {
		return nil, err
	}
	go e.run()
	return e, nil
}

// setTargets says how long the responses of each target have to be idle.
func (e *ender) setTargets(targets map[uint16]*target) {
	idle := make(map[uint32]time.Duration)
	for _, t := range targets {
		if d := t.config.Rule.End.Idle; d > 0 {
			idle[t.id] = d
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.idle = idle
}

// add has the ender look at a response that has begun. It does not block.
func (e *ender) add(w loader.Wake) {
	e.mu.Lock()
	idle := e.idle[w.Target]
	e.mu.Unlock()
	e.push(response{Wake: w, due: w.At + idle})
	select {
	case e.news <- struct{}{}:
	default:
	}
}

// push plans to look at a response, unless that is planned for its connection
// already: when it is looked at, the kernel says when to look again.
func (e *ender) push(r response) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f := r.flow(); !e.known[f] {
		e.known[f] = true
		heap.Push(&e.all, r)
	}
}

// pop returns the first response that is due at a time, or else when one is.
func (e *ender) pop(now time.Duration) (r response, ok bool, next time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case len(e.all) == 0:
		return response{}, false, math.MaxInt64
	case e.all[0].due > now:
		return response{}, false, e.all[0].due
	}
	r = heap.Pop(&e.all).(response)
	delete(e.known, r.flow()) // what is told from here on is told of its next one
	return r, true, 0
}

func (e *ender) close() error {
	close(e.stop)
	<-e.done
	return e.claimer.Close()
}

func (e *ender) run() {
	defer close(e.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var trouble error
	for {
		select {
		case <-e.stop:
			return
		case <-e.news:
		case <-timer.C:
		}
		now, err := monotonic()
		next := time.Duration(math.MaxInt64)
		for err == nil {
			r, ok, at := e.pop(now)
			if !ok {
				next = at
				break
			}
			if r.due, err = e.claimer.Idle(loader.Unit{Client: r.Client, Server: r.Server, Device: r.Device}); err != nil {
				r.due, next = now+enderRetry, now+enderRetry
			}
			if r.due > 0 {
				e.push(r)
			}
		}
		if err != nil && trouble == nil {
			e.log.Error("the end of a response is noticed late", "error", err)
		}
		trouble = err
		timer.Reset(max(next-now, 0))
	}
}

// enderRetry is when what could not be asked is asked again.
const enderRetry = 100 * time.Millisecond

// response is one that goes on, and when to look at it.
type response struct {
	loader.Wake
	due time.Duration
}

func (r response) flow() flow { return flow{r.Client, r.Server, r.Device} }

// responses is a heap of them, the one that is due first on top.
type responses []response

func (r responses) Len() int           { return len(r) }
func (r responses) Less(i, j int) bool { return r[i].due < r[j].due }
func (r responses) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *responses) Push(x any)        { *r = append(*r, x.(response)) }
func (r *responses) Pop() any {
	last := len(*r) - 1
	x := (*r)[last]
	*r = (*r)[:last]
	return x
}
