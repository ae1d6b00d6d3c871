package controller

import "fmt"

// Fixed is a constant limit.
//
// Settings: initial 20, min 0, max 65536.
type Fixed struct {
	min, max, limit int
}

func newFixed(s *settings, p Params) *Fixed {
	initial, lo, hi := s.bounds(p, 20, 0, 65536, 0)
	s.asked["warm_up"] = true // holds the limit, which stands anyway
	return &Fixed{min: lo, max: hi, limit: initial}
}

// Set changes the limit. One that is out of bounds is an error and changes
// nothing.
func (f *Fixed) Set(limit int) error {
	if limit < f.min || limit > f.max {
		return fmt.Errorf("limit %d is not from %d to %d", limit, f.min, f.max)
	}
	f.limit = limit
	return nil
}

// Decide implements [Algorithm].
func (f *Fixed) Decide(Tick) Decision {
	return Decision{Limit: f.limit, AfterRefusal: f.limit}
}

// Terms implements [Algorithm].
func (f *Fixed) Terms() []Term {
	return []Term{{"limit", float64(f.limit), "The configured limit."}}
}
