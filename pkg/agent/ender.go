package agent

import (
	"container/heap"
	"log/slog"
	"time"

	"headgate/pkg/loader"
)

// ender ends the requests of a scope whose response has been idle for as long
// as their rule says. The programs tell when a response begins, and each is
// looked at when it may be over; no timer runs in the kernel.
type ender struct {
	claimer *loader.Claimer
	idle    map[uint32]time.Duration // by target
	log     *slog.Logger
	news    chan loader.Wake
	done    chan struct{}
}

// enderBacklog is how many responses may begin while the ender is not
// scheduled. Beyond, the reading of events waits, and what the programs cannot
// tell then they tell with the next output.
const enderBacklog = 4096

func newEnder(g *loader.Gate, s *scopeState, log *slog.Logger) (*ender, error) {
	e := &ender{
		idle: make(map[uint32]time.Duration),
		log:  log,
		news: make(chan loader.Wake, enderBacklog),
		done: make(chan struct{}),
	}
	for _, t := range s.targets {
		if d := t.config.Rule.End.Idle; d > 0 {
			e.idle[t.id] = d
		}
	}
	var err error
	if e.claimer, err = g.NewClaimer(s.netns); err != nil {
		return nil, err
	}
	go e.run()
	return e, nil
}

func (e *ender) add(w loader.Wake) { e.news <- w }

func (e *ender) close() error {
	close(e.news)
	<-e.done
	return e.claimer.Close()
}

func (e *ender) run() {
	defer close(e.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var all responses
	var trouble error
	for {
		select {
		case w, ok := <-e.news:
			if !ok {
				return
			}
			heap.Push(&all, response{Wake: w, due: w.At + e.idle[w.Target]})
		case <-timer.C:
		}
		now, err := monotonic()
		for err == nil && len(all) > 0 && all[0].due <= now {
			r := heap.Pop(&all).(response)
			r.due, err = e.claimer.Idle(r.Client, r.Server)
			if r.due > 0 {
				heap.Push(&all, r)
			}
		}
		if err != nil && trouble == nil {
			e.log.Error("the end of a response is not noticed", "error", err)
		}
		trouble = err
		if len(all) > 0 {
			timer.Reset(max(all[0].due-now, 0))
		}
	}
}

// response is one that goes on, and when to look at it.
type response struct {
	loader.Wake
	due time.Duration
}

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
