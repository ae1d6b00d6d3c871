package api

import (
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// maxTurns is how many long answers are made and sent at once.
	maxTurns = 8

	// turnTime is how long who gets one may take to read it while others wait.
	turnTime = time.Second

	// turnWait is how long the others wait, who then get 503. It is less than
	// who asks waits for an answer, see fetchTimeout.
	turnWait = 2500 * time.Millisecond

	// turnTick is how often those that wait look for somebody who takes too long.
	turnTick = 50 * time.Millisecond
)

// turns hands requests on to handlers so that few of all of them are worked on at
// once. Nobody keeps the others waiting by not reading, or by asking again and
// again: the last one to come has the next turn.
type turns struct {
	mu      sync.Mutex
	taken   int
	waiting []chan struct{} // closed when it is somebody's turn
	read    map[*longAnswer]struct{}
}

func newTurns() *turns { return &turns{read: make(map[*longAnswer]struct{})} }

// handler returns one that waits for its turn and then does as h.
func (t *turns) handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !t.begin(r) {
			w.Header().Set("Retry-After", "1")
			text(w, http.StatusServiceUnavailable, "too many others ask for as much\n")
			return
		}
		defer t.end()
		a := &longAnswer{ResponseWriter: w, turns: t}
		defer a.remove()
		h.ServeHTTP(a, r)
	})
}

// begin waits for a turn, and says whether it came.
func (t *turns) begin(r *http.Request) bool {
	t.mu.Lock()
	if t.taken < maxTurns {
		t.taken++
		t.mu.Unlock()
		return true
	}
	mine := make(chan struct{})
	t.waiting = append(t.waiting, mine)
	t.mu.Unlock()

	tick, late := time.NewTicker(turnTick), time.After(turnWait)
	defer tick.Stop()
	for {
		select {
		case <-mine:
			return true
		case <-tick.C:
			t.endSlow()
			continue
		case <-late:
		case <-r.Context().Done():
		}
		return !t.giveUp(mine)
	}
}

// giveUp says whether who waited has not had a turn meanwhile.
func (t *turns) giveUp(turn chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.waiting, turn)
	if i < 0 {
		return false
	}
	t.waiting = slices.Delete(t.waiting, i, i+1)
	return true
}

// end gives a turn to the next one.
func (t *turns) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := len(t.waiting) - 1
	if last < 0 {
		t.taken--
		return
	}
	close(t.waiting[last])
	t.waiting = t.waiting[:last]
}

// endSlow ends the answers that have been read for too long.
func (t *turns) endSlow() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for a := range t.read {
		if time.Since(a.begun) > turnTime {
			delete(t.read, a)
			// What cannot be interrupted has a deadline of its own.
			_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Now())
		}
	}
}

// longAnswer is one that is being made, and then read.
type longAnswer struct {
	http.ResponseWriter
	turns *turns
	begun time.Time // when the first of it was sent
	gone  bool      // who asked for it
}

// Write implements [http.ResponseWriter]. It never fails: that a client is gone is
// nothing that its handler has to report.
func (a *longAnswer) Write(b []byte) (int, error) {
	if a.begun.IsZero() {
		a.begun = time.Now()
		a.turns.mu.Lock()
		a.turns.read[a] = struct{}{}
		a.turns.mu.Unlock()
	}
	if !a.gone {
		_, err := a.ResponseWriter.Write(b)
		a.gone = err != nil
	}
	return len(b), nil
}

// Unwrap is for [http.ResponseController].
func (a *longAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *longAnswer) remove() {
	a.turns.mu.Lock()
	defer a.turns.mu.Unlock()
	delete(a.turns.read, a)
}
