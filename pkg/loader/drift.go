package loader

// Drift is by how much more of a target was counted than there is. It is
// negative where less was.
type Drift struct {
	InFlight, Waiting, Pending, Connections, Idle int
}

// none says whether everything counted is there.
func (d Drift) none() bool { return d == Drift{} }

// The numbers of a target that a recount looks at, in the order of Drift.
const (
	inFlight = iota
	waiting
	pending
	connections
	idle
	quantities
)

// counted is what is counted of a target at one moment, and how often that
// changed until then.
type counted struct {
	n           [quantities]int
	adopted     uint64 // connections
	converted   uint64 // from a reservation to a connection
	finished    uint64 // units
	expired     uint64 // reservations
	held        uint64 // units that begin to wait
	established uint64 // connections
	rested      uint64 // connections that become idle
	woken       uint64 // or do not stay so
}

// found is what there is.
type found [quantities]int

// span is what a drift can be: at least lo, at most hi.
type span struct{ lo, hi int }

// meet is what it can be if it is in both.
func (s span) meet(o span) span { return span{max(s.lo, o.lo), min(s.hi, o.hi)} }

// exact says whether nothing is left open. So it is when nothing is left at all:
// then one of the spans that met was wrong.
func (s span) exact() bool { return s.lo >= s.hi }

// proven is the part of the drift that there is for certain.
func (s span) proven() int {
	switch {
	case s.lo > s.hi:
		return 0
	case s.lo > 0:
		return s.lo
	case s.hi < 0:
		return s.hi
	}
	return 0
}

// spans says what the drift can be by what was found between two readings, while
// things began and ended. What ended may or may not have been found before it
// did, and so may what began. Only what was there all the time was found for
// certain, and once, but for a reservation that became a connection: that may
// have been found as both.
//
// Most is told by only one of the two counters that it would take; the change
// of the number itself says the rest.
func spans(before, after counted, f found) (all [quantities]span) {
	since := func(read func(*counted) uint64) int { return int(read(&after) - read(&before)) }
	grown := func(q int) int { return after.n[q] - before.n[q] }
	expired := since(func(c *counted) uint64 { return c.expired })
	converted := since(func(c *counted) uint64 { return c.converted })

	ended := [quantities]int{
		inFlight: since(func(c *counted) uint64 { return c.finished }) + expired,
		pending:  converted + expired,
		idle:     since(func(c *counted) uint64 { return c.woken }),
	}
	var begun [quantities]int
	begun[inFlight] = grown(inFlight) + ended[inFlight] + converted
	begun[pending] = grown(pending) + ended[pending]
	begun[idle] = since(func(c *counted) uint64 { return c.rested })
	begun[waiting] = since(func(c *counted) uint64 { return c.held })
	ended[waiting] = begun[waiting] - grown(waiting)
	begun[connections] = since(func(c *counted) uint64 { return c.established })
	ended[connections] = begun[connections] - grown(connections)

	for q := range all {
		drift := before.n[q] - f[q]
		all[q] = span{drift - max(ended[q], 0), drift + max(begun[q], 0)}
	}
	return all
}

// agree returns what two recounts that know nothing of each other have both
// proven.
func agree(a, b int) int {
	switch {
	case a > 0 && b > 0:
		return min(a, b)
	case a < 0 && b < 0:
		return max(a, b)
	}
	return 0
}
