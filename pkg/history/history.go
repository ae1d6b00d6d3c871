// Package history keeps what each target was in the last ten minutes, a point
// a second, in memory of a fixed size.
package history

import (
	"math"
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
	// status. A target takes 27 KB.
	MaxTargets = 1000

	// maxReasons bounds what is remembered as reasons for a change of a limit.
	// What comes beyond counts as the last of them. Algorithms know a dozen.
	maxReasons = math.MaxUint8
)

// key names a target, as the API's paths do.
type key struct {
	scope string
	port  uint16
}

// Store remembers targets. It is safe for concurrent use.
type Store struct {
	mu      sync.Mutex
	begin   time.Time // second 0
	at      time.Time // of the newest point
	second  int64     // the same; -1: there is none
	rings   map[key]*ring
	order   []*ring  // as in the newest status
	reasons []string // by number; 0 is none
}

// New returns an empty store.
func New() *Store {
	return &Store{second: -1, rings: make(map[key]*ring), reasons: []string{""}}
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
		r.add(second, elapsed, t, s.reason(t.LastChange.Reason))
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

// reason returns the number of a reason.
func (s *Store) reason(text string) uint8 {
	for i, r := range s.reasons {
		if r == text {
			return uint8(i)
		}
	}
	if len(s.reasons) <= maxReasons {
		s.reasons = append(s.reasons, text)
	}
	return uint8(len(s.reasons) - 1)
}
