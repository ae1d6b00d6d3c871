// Package history keeps what each target was in the last ten minutes, a point
// a second, in memory of a fixed size.
package history

import (
	"sync"
	"time"

	"headgate/pkg/status"
)

const (
	// Interval is the time from one point to the next.
	Interval = time.Second

	// Points is how many are kept of a target: ten minutes.
	Points = 600

	// MaxTargets is how many targets are remembered, the first ones of a
	// status. A target takes 2.4 KB for each of twelve series that is not always
	// the same, and 29 KB at most.
	MaxTargets = 1000

	// maxChanges is how many changes of its limit are kept of a target.
	maxChanges = 20
)

// key names a target, as the API's paths do.
type key struct {
	scope string
	port  uint16
}

// Store remembers targets. It is safe for concurrent use.
type Store struct {
	mu     sync.Mutex
	begin  time.Time // second 0
	at     time.Time // of the newest point
	second int64     // the same; -1: there is none
	rings  map[key]*ring
	order  []*ring // as in the newest status
}

// New returns an empty store.
func New() *Store {
	return &Store{second: -1, rings: make(map[key]*ring)}
}

// Record adds a point for each of the targets and forgets every other target.
// It wants to be called once an Interval; seconds in which it was not are
// remembered as such, and a call in the same second as the one before, or with
// an earlier time, does nothing.
func (s *Store) Record(at time.Time, targets []status.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.second < 0 {
		s.begin = at
	}
	second := int64(at.Sub(s.begin).Round(Interval) / Interval)
	if second <= s.second {
		return
	}
	elapsed := at.Sub(s.at)
	if s.second < 0 {
		elapsed = Interval
	}
	s.second, s.at = second, at
	s.order = s.order[:0]
	for i := range targets[:min(len(targets), MaxTargets)] {
		t := &targets[i]
		k := key{t.Scope, t.Port}
		r := s.rings[k]
		if r == nil {
			r = newRing(t, second)
			s.rings[k] = r
		}
		r.add(second, elapsed, t)
		s.order = append(s.order, r)
	}
	if len(s.rings) > len(s.order) {
		for k, r := range s.rings {
			if r.last != second {
				delete(s.rings, k)
			}
		}
	}
}

// Changed remembers that the limit of a target changed, if the target is known.
func (s *Store) Changed(scope string, port uint16, c Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.rings[key{scope, port}]; r != nil {
		if len(r.changes) < maxChanges {
			r.changes = append(r.changes, c)
		} else {
			r.changes[r.changed%maxChanges] = c
		}
		r.changed++
	}
}
