package top

import (
	"math"
	"time"

	"headgate/pkg/status"
)

// kept is how many moments of the past are shown at most.
const kept = 120

// history is what a target was lately, the newest last.
type history struct {
	limit, inFlight, service []float64
	count                    int // moments, also those that are forgotten

	at               time.Time // of the newest
	refused, would   uint64
	refusedPerSecond float64 // refused or, while it observes, would have been
}

func (h *history) add(at time.Time, t *status.Target) {
	refused := t.RejectedTotal.Sum()
	if passed := at.Sub(h.at).Seconds(); !h.at.IsZero() && passed > 0 {
		h.refusedPerSecond = (grown(refused, h.refused) + grown(t.WouldRejectTotal, h.would)) / passed
	}
	h.at, h.refused, h.would = at, refused, t.WouldRejectTotal
	service := t.Window.MeanSeconds
	if t.Window.Samples == 0 {
		service = math.NaN() // nothing was measured
	}
	h.count++
	h.limit = push(h.limit, float64(t.Limit))
	h.inFlight = push(h.inFlight, float64(t.InFlight))
	h.service = push(h.service, service)
}

// grown is by how much a counter grew; one that went back began anew.
func grown(now, before uint64) float64 {
	if now < before {
		return float64(now)
	}
	return float64(now - before)
}

func push(s []float64, v float64) []float64 {
	if len(s) == kept {
		copy(s, s[1:])
		s = s[:kept-1]
	}
	return append(s, v)
}

// condensed puts the last span moments of a series into at most width values,
// each the largest of its moments. Where one ends and the next begins does not
// move with time.
func (h *history) condensed(values []float64, width, span int) []float64 {
	each := max((span+width-1)/max(width, 1), 1)
	var all []float64
	most, any := math.NaN(), false
	for i, v := range values {
		if !math.IsNaN(v) && !(v <= most) {
			most = v
		}
		any = true
		if number := h.count - len(values) + i + 1; number%each == 0 {
			all = append(all, most)
			most, any = math.NaN(), false
		}
	}
	if any {
		all = append(all, most)
	}
	return all[max(len(all)-width, 0):]
}
