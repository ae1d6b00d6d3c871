package history

import (
	"strconv"
	"time"
)

// History is what is remembered of some targets. All series end at Second;
// those of a younger target begin later.
type History struct {
	Time            time.Time `json:"time"`             // of the newest points, a whole number of seconds after the first
	Second          int64     `json:"second"`           // that number; -1: there are no points
	IntervalSeconds float64   `json:"interval_seconds"` // from one point to the next
	Targets         []Target  `json:"targets"`
}

// Target is the history of one. A value is null where it was not known.
type Target struct {
	Rule   string `json:"rule"`
	Port   uint16 `json:"port"`
	Scope  string `json:"scope"`
	Unit   string `json:"unit"`
	Signal string `json:"signal"`

	Limit                Values   `json:"limit"`
	InFlight             Values   `json:"in_flight"`
	Waiting              Values   `json:"waiting"`
	LatencySeconds       Values   `json:"latency_seconds"` // mean of the signal
	BaselineSeconds      Values   `json:"baseline_seconds"`
	AdmittedPerSecond    Values   `json:"admitted_per_second"`
	RejectedPerSecond    Rejected `json:"rejected_per_second"`
	WouldRejectPerSecond Values   `json:"would_reject_per_second"`

	Changes []Change `json:"changes"` // of the limit, the last twenty
}

// Rejected are rejections by reason.
type Rejected struct {
	Limit       Values `json:"limit"`
	Pace        Values `json:"pace"`
	Source      Values `json:"source"`
	Flood       Values `json:"flood"`
	HoldTimeout Values `json:"hold_timeout"`
}

// Change is one of the limit; several within a second count as one, with the
// reason of the largest.
type Change struct {
	Time   time.Time `json:"time"`
	From   int       `json:"from"`
	To     int       `json:"to"`
	Reason string    `json:"reason"` // as in the status
	Words  string    `json:"words"`  // the same for people
}

// Values are points, oldest first; NaN where there is none.
type Values []float32

// MarshalJSON writes NaN as null, and six significant digits.
func (v Values) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, 2+8*len(v))
	b = append(b, '[')
	for i, x := range v {
		if i > 0 {
			b = append(b, ',')
		}
		if x != x {
			b = append(b, "null"...)
		} else {
			b = strconv.AppendFloat(b, float64(x), 'g', 6, 32)
		}
	}
	return append(b, ']'), nil
}

// Newest returns at most so many points of the targets for which wanted says
// yes, in the order of the newest status.
func (s *Store) Newest(points int, wanted func(scope string, port uint16) bool) History {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := History{Second: s.second, IntervalSeconds: Interval.Seconds(), Targets: []Target{}}
	if s.second >= 0 {
		h.Time = s.begin.Add(time.Duration(s.second) * Interval)
	}
	points = max(min(points, Points), 1)
	for _, r := range s.order {
		if !wanted(r.scope, r.port) {
			continue
		}
		h.Targets = append(h.Targets, Target{
			Rule: r.rule, Port: r.port, Scope: r.scope, Unit: r.unit, Signal: r.signal,
			Limit:             r.get(limit, points),
			InFlight:          r.get(inFlight, points),
			Waiting:           r.get(waiting, points),
			LatencySeconds:    r.get(latency, points),
			BaselineSeconds:   r.get(baseline, points),
			AdmittedPerSecond: r.get(admitted, points),
			RejectedPerSecond: Rejected{
				Limit:       r.get(rejectedLimit, points),
				Pace:        r.get(rejectedPace, points),
				Source:      r.get(rejectedSource, points),
				Flood:       r.get(rejectedFlood, points),
				HoldTimeout: r.get(rejectedHoldTimeout, points),
			},
			WouldRejectPerSecond: r.get(wouldReject, points),
			Changes:              r.latest(),
		})
	}
	return h
}
