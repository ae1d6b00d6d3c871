package loader

import (
	"testing"

	"pgregory.net/rapid"
)

// world is a target whose counts are off by what is known, and whose units come
// and go while a recount looks.
type world struct {
	c     counted
	truth map[int]*thing
	next  int
}

// thing is a unit: a reservation, a connection, or one that waits.
type thing struct{ pending, idle, waits bool }

func (w *world) step(t *rapid.T) {
	var of []int
	for id := range w.truth {
		of = append(of, id)
	}
	kind := rapid.IntRange(0, 7).Draw(t, "event")
	if kind <= 2 || len(of) == 0 {
		w.next++
		x := &thing{}
		w.truth[w.next] = x
		switch kind {
		case 0: // a SYN
			x.pending = true
			w.c.n[pending]++
			w.c.n[inFlight]++
		case 1: // a connection without a reservation
			w.c.n[inFlight]++
			w.c.established++
		default: // a request, or a SYN, that waits
			x.waits = true
			w.c.n[waiting]++
			w.c.held++
		}
		return
	}
	// The least, and not any in the order of a map: a run can be repeated.
	id := of[0]
	for _, other := range of {
		id = min(id, other)
	}
	x := w.truth[id]
	switch {
	case x.waits:
		w.c.n[waiting]--
		delete(w.truth, id)
	case x.pending && kind < 6:
		x.pending = false
		w.c.n[pending]--
		w.c.converted++
		w.c.established++
	case x.pending:
		w.c.n[pending]--
		w.c.n[inFlight]--
		w.c.expired++
		delete(w.truth, id)
	case !x.idle && kind < 5:
		x.idle = true
		w.c.rested++
	case x.idle && kind < 7:
		x.idle = false
		w.c.woken++
	default:
		if x.idle {
			w.c.woken++
		}
		w.c.n[inFlight]--
		w.c.finished++
		delete(w.truth, id)
	}
}

func (w *world) reading() counted {
	c := w.c
	c.n[idle] += int(c.rested) - int(c.woken)
	return c
}

// Whatever happens while it is looked, the drift is in the span; and when
// nothing does, the span is the drift.
func TestSpansHoldTheDrift(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{truth: make(map[int]*thing)}
		for range rapid.IntRange(0, 30).Draw(t, "before") {
			w.step(t)
		}
		var drift [quantities]int
		for _, q := range []int{inFlight, waiting, pending, idle} {
			drift[q] = rapid.IntRange(-5, 5).Draw(t, "drift")
			w.c.n[q] += drift[q]
		}
		meanwhile := rapid.IntRange(0, 3).Draw(t, "meanwhile")
		events := 0
		churn := func() {
			for range rapid.IntRange(0, meanwhile).Draw(t, "events") {
				w.step(t)
				events++
			}
		}
		before := w.reading()
		churn()
		var f found
		for id := range w.next + 1 { // reservations, and what waits
			if x := w.truth[id]; x != nil && x.pending {
				f[pending]++
				f[inFlight]++
			} else if x != nil && x.waits {
				f[waiting]++
			}
			if id%8 == 0 {
				churn()
			}
		}
		churn()
		for id := range w.next + 1 { // connections
			if x := w.truth[id]; x != nil && !x.pending && !x.waits {
				f[inFlight]++
				if x.idle {
					f[idle]++
				}
			}
			if id%8 == 0 {
				churn()
			}
		}
		churn()
		for q, s := range spans(before, w.reading(), f) {
			if drift[q] < s.lo || drift[q] > s.hi {
				t.Errorf("quantity %d is off by %d, said to be within %+v after %d events", q, drift[q], s, events)
			}
			if events == 0 && (!s.exact() || s.proven() != drift[q]) {
				t.Errorf("quantity %d is off by %d, and nothing happened: %+v", q, drift[q], s)
			}
		}
	})
}

func TestProvenAndAgree(t *testing.T) {
	for s, want := range map[span]int{
		{0, 0}: 0, {-2, 3}: 0, {2, 5}: 2, {-5, -2}: -2, {3, 3}: 3,
		{3, 2}: 0, // passes that contradict each other prove nothing
	} {
		if got := s.proven(); got != want {
			t.Errorf("%+v proves %d, want %d", s, got, want)
		}
	}
	for in, want := range map[[2]int]int{
		{3, 2}: 2, {-3, -2}: -2, {3, -2}: 0, {0, 4}: 0, {-1, 0}: 0,
	} {
		if got := agree(in[0], in[1]); got != want {
			t.Errorf("agree(%d, %d) = %d, want %d", in[0], in[1], got, want)
		}
	}
}
