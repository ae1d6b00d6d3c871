package loader

import (
	"errors"
	"fmt"
	"time"

	"headgate/pkg/rtt"
)

// ErrFull means that a map has no room for another target.
var ErrFull = errors.New("no room for more targets")

// TargetKey is what a target is known by in the kernel.
type TargetKey struct {
	Netns uint64 // cookie
	Port  uint16
}

// Signal names a latency that the programs measure.
type Signal uint32

// The signals, in the order of the kernel's.
const (
	Service   = Signal(headgateSignalSIGNAL_SERVICE)   // last request byte in to first response byte out
	RTT       = Signal(headgateSignalSIGNAL_RTT)       // of TCP, with the client's delayed ACK
	Handshake = Signal(headgateSignalSIGNAL_HANDSHAKE) // of TCP, without it
	Lifetime  = Signal(headgateSignalSIGNAL_LIFETIME)  // of connections; with [Order].Accept their wait for the application

	signals = int(headgateSignalSIGNALS)
)

// Order is what the kernel is to enforce on a target.
type Order struct {
	Enforce      bool
	Limit        int
	AfterRefusal int    // the limit once something was refused in this tick
	Signal       Signal // which one the cohort times
	Accept       bool   // Lifetime is how long connections wait until the application reads, see [Gate.WatchReads]
	Tick         uint32 // must differ from the one before
	CohortEpoch  uint32
	CohortSize   int

	Requests bool // the unit is a request; else a connection
	Ingress  bool // decide on the devices, where arrivals can be held or dropped
	Drop     bool // refuse by silence

	// Doubt is the time after a request within which output that may be session
	// tickets of TLS is not taken for the response. With Requests.
	Doubt time.Duration

	MaxWaiting   int           // most units that wait at once
	MaxWait      time.Duration // for a free slot
	PaceInterval time.Duration // from one admission to the next; 0: no pace
	PaceCredit   time.Duration // how far the schedule may lag behind: (burst - 1) x PaceInterval
	PaceMaxWait  time.Duration // how far off a pace slot may be

	Idle time.Duration // output idle for so long ends a request; 0: its first byte does

	// Strangers is how many a second the listener gets to see of those who have
	// not shown that they are clients, in flood mode; 0: all.
	Strangers int
}

// Reading is what the kernel has counted on a target. Counters never go back.
type Reading struct {
	InFlight    int
	Waiting     int    // units that are held
	Connections int    // with Order.Requests, where InFlight is requests
	Pending     int    // of these, reservations whose handshake goes on
	Peak        int    // most in flight in PeakTick
	PeakTick    uint32 // the Order.Tick that was in force
	RefusedIn   uint32 // the last Order.Tick in which something was refused
	Listens     uint32 // calls of listen(2) on the port

	Admitted    uint64 // connections established, or adopted
	Adopted     uint64 // of these, older than the programs
	Finished    uint64
	Expired     uint64 // reservations that came to nothing
	Rejected    uint64
	WouldReject uint64 // over the limit, let in all the same
	PendingFull uint64 // let in without a reservation, for lack of room
	ConnFull    uint64 // not counted, for lack of memory
	Unadoptable uint64 // older connections that could not be followed

	// FloodUntil is when flood mode ends if no more comes, on CLOCK_MONOTONIC.
	FloodUntil time.Duration
	Trimmed    uint64 // connections that there was no slot for and that are to be ended
	Untrimmed  uint64 // of these, those of which no [Wakes] could tell

	RejectedPace   uint64 // their pace slot was too far off
	RejectedFlood  uint64 // strangers in flood mode, see Order.Strangers
	RejectedSource uint64 // as many of their source were here as may be
	Unwoken        uint64 // slots that came free and were not told of, see [Wakes], for lack of room
	SourceFull     uint64 // not counted by their source, for lack of room
	Exempted       uint64 // connections that were let in uncounted: their source is exempt

	Held       uint64 // units that had to wait
	Claimed    uint64 // of these, those that got a slot
	Doubtful   uint64 // requests that may have had their response: [Gate.Settle] tells, a second later
	Untold     uint64 // responses whose begin was not told, see [Wakes]: the same, once they are idle
	Bypassed   uint64 // of these, those that came in with no agent there
	HoldFull   uint64 // not held for lack of room
	EventsLost uint64 // refusals that there was no room to tell of, see [Refusals]

	// Idle is how many connections are kept open for a next request, or were
	// adopted and have asked nothing since. It is counted from the packets.
	Idle int

	Samples [signals]uint64
	Sum     [signals]time.Duration

	CohortEpoch  uint32
	CohortJoined int
	CohortDone   int
	CohortSum    time.Duration
	CohortStarts uint64 // sum of CLOCK_MONOTONIC start times of the unfinished, ns, modulo 2^64
}

// Target returns the number of a target, under which it is read and written.
// A known one keeps its number and its counts. A new one begins with order o,
// which is in force before the first connection can meet it. For lease see
// [Gate.Write].
func (g *Gate) Target(key TargetKey, o Order, lease time.Duration) (uint32, error) {
	if key.Netns > maxCookie {
		return 0, fmt.Errorf("network namespace %#x: its cookie has more than 48 bits", key.Netns)
	}
	if id, ok := g.ids[key]; ok {
		return id, g.Write([]uint32{id}, []Order{o}, lease)
	}
	id, err := g.freeID()
	if err != nil {
		return 0, err
	}
	if err := g.zero(id); err != nil {
		return 0, err
	}
	if err := g.Write([]uint32{id}, []Order{o}, lease); err != nil {
		return 0, err
	}
	if p, ok := g.sources.wanted[key]; ok {
		if err := g.setSources(id, p); err != nil {
			return 0, err
		}
	}
	if err := g.ports.add(key, id); err != nil {
		return 0, fmt.Errorf("add target for port %d: %w", key.Port, err)
	}
	g.ids[key] = id
	return id, nil
}

// freeID returns a number that no target has, the one that was given back
// longest ago first: a program that has found the old target may still be
// running. One that something is counted under is not free.
func (g *Gate) freeID() (uint32, error) {
	used := make(map[uint32]bool, len(g.ids))
	for _, id := range g.ids {
		used[id] = true
	}
	if err := g.of(0); err != nil {
		return 0, err
	}
	room := uint32(len(g.confs.elements))
	for i := range room {
		id := (g.nextID + i) % room
		if used[id] {
			continue
		}
		if g.empty(id) {
			g.nextID = id + 1
			return id, nil
		}
	}
	return 0, fmt.Errorf("%w than the %d that there is room for", ErrFull, room)
}

// empty says whether nothing is counted under a number.
func (g *Gate) empty(id uint32) bool {
	st := &g.states.elements[id]
	return st.Units == 0 && st.Connections == 0
}

// zero clears what an earlier target of that number has left. Nothing counts
// there before the number is given out again.
func (g *Gate) zero(id uint32) error {
	r, err := g.Reading(id)
	err = errors.Join(
		err,
		g.maps[headgateMapFloods].Put(id, headgateFlood{}),
		g.dropSources(id),
	)
	for s, samples := range r.Samples {
		if samples > 0 {
			err = errors.Join(err, g.maps[headgateMapHistograms].Put(id*uint32(signals)+uint32(s), make([]headgateHistogram, g.cpus)))
		}
	}
	if err != nil {
		return fmt.Errorf("clear target %d: %w", id, err)
	}
	g.states.elements[id] = headgateTargetState{}
	g.cohorts.elements[id] = headgateCohort{}
	clear(g.countersOf(id))
	return nil
}

// Retire opens the gate of a target whose rule is gone. While connections of
// it are left it is counted on, so that it can be taken up again; after that
// its number is free.
func (g *Gate) Retire(key TargetKey) error {
	id, ok := g.ids[key]
	if !ok {
		return nil
	}
	if err := g.Write([]uint32{id}, []Order{{}}, 0); err != nil {
		return err
	}
	if !g.empty(id) {
		return nil
	}
	delete(g.ids, key)
	delete(g.sources.wanted, key)
	if err := g.ports.remove(key); err != nil {
		return fmt.Errorf("retire target: %w", err)
	}
	return nil
}

// Targets returns every target that the kernel knows, also those of
// predecessors whose rules are gone.
func (g *Gate) Targets() map[TargetKey]uint32 { return g.ids }

// Holds says whether arrivals of a target may wait by the order that it has, also
// where that is a predecessor's: then its programs on the devices know who does.
func (g *Gate) Holds(id uint32) bool {
	const enforce = headgateTargetFlagsTARGET_ENFORCE
	conf := &g.confs.elements[id]
	return conf.Flags&enforce != 0 && conf.MaxWaiting > 0
}

// Write puts orders in force; ids are the targets' numbers. They hold until
// lease, on CLOCK_MONOTONIC; unless they are written again by then the gates
// open, and only counting goes on. After [Gate.Close] the error is an [os.ErrClosed].
func (g *Gate) Write(ids []uint32, orders []Order, lease time.Duration) error {
	for i := range orders {
		if err := g.of(ids[i]); err != nil {
			return fmt.Errorf("write orders: %w", err)
		}
		conf := orders[i].conf()
		conf.Lease = uint64(lease)
		conf.ReadsSince = g.readsSince()
		conf.Flags |= g.sourceFlags(ids[i])
		g.confs.elements[ids[i]] = conf
	}
	return nil
}

// Open opens the gates, as when the lease runs out, until the next [Gate.Write].
func (g *Gate) Open() {
	for _, id := range g.ids {
		g.confs.elements[id].Lease = 0
	}
}

// conf is the order as the programs read it.
func (o *Order) conf() headgateTargetConf {
	conf := headgateTargetConf{
		Limit:        clampUint32(o.Limit),
		AfterRefusal: clampUint32(o.AfterRefusal),
		Signal:       headgateSignal(o.Signal),
		Tick:         o.Tick,
		CohortEpoch:  o.CohortEpoch,
		CohortSize:   clampUint32(o.CohortSize),
		Doubt:        uint64(max(o.Doubt, 0)),
		MaxWaiting:   clampUint32(o.MaxWaiting),
		MaxWait:      uint64(max(o.MaxWait, 0)),
		PaceInterval: uint64(max(o.PaceInterval, 0)),
		PaceCredit:   uint64(max(o.PaceCredit, 0)),
		PaceMaxWait:  uint64(max(o.PaceMaxWait, 0)),
		Idle:         uint64(max(o.Idle, 0)),
		Strangers:    clampUint32(o.Strangers),
	}
	for _, f := range [...]struct {
		on   bool
		flag headgateTargetFlags
	}{
		{o.Enforce, headgateTargetFlagsTARGET_ENFORCE},
		{o.Ingress, headgateTargetFlagsTARGET_INGRESS},
		{o.Requests, headgateTargetFlagsTARGET_REQUEST},
		{o.Drop, headgateTargetFlagsTARGET_DROP},
		{o.Idle > 0, headgateTargetFlagsTARGET_IDLE},
		{o.Accept, headgateTargetFlagsTARGET_ACCEPT},
	} {
		if f.on {
			conf.Flags |= f.flag
		}
	}
	return conf
}

func clampUint32(n int) uint32 {
	return uint32(min(max(n, 0), 1<<31-1))
}

// Reading returns what the kernel has counted on a target now. It asks the kernel
// nothing, and allocates nothing. After [Gate.Close] the error is an [os.ErrClosed].
func (g *Gate) Reading(id uint32) (Reading, error) {
	if err := g.of(id); err != nil {
		return Reading{}, fmt.Errorf("read counts: %w", err)
	}
	st, co := g.states.elements[id], g.cohorts.elements[id]
	return reading(&st, &co, g.countersOf(id)), nil
}

// countersOf returns the counters of a target, those of each CPU.
func (m *memories) countersOf(id uint32) []headgateTargetCounters {
	return m.counters.elements[int(id)*m.cpus:][:m.cpus]
}

func reading(st *headgateTargetState, co *headgateCohort, cpus []headgateTargetCounters) Reading {
	r := Reading{
		InFlight:     int(uint32(st.Units)),
		Waiting:      int(st.Units >> 32),
		Connections:  int(int32(st.Connections)),
		Pending:      int(int32(st.Pending)),
		Peak:         int(uint32(st.Peak)),
		PeakTick:     uint32(st.Peak >> 32),
		RefusedIn:    st.RefusedIn,
		Listens:      st.Listens,
		FloodUntil:   time.Duration(st.FloodUntil),
		CohortEpoch:  uint32(co.Joined >> 32),
		CohortJoined: int(uint32(co.Joined)),
		CohortDone:   int(co.Done),
		CohortSum:    time.Duration(co.Sum),
		CohortStarts: co.Starts,
	}
	var rested, woken uint64
	for i := range cpus {
		c := &cpus[i]
		rested += c.Rested
		woken += c.Woken
		r.Admitted += c.Converted + c.Unreserved + c.Adopted + c.Requests
		r.Adopted += c.Adopted
		r.Finished += c.Finished
		r.Expired += c.Expired
		r.Rejected += c.Rejected
		r.WouldReject += c.WouldReject
		r.PendingFull += c.PendingFull
		r.ConnFull += c.ConnFull
		r.Unadoptable += c.Unadoptable
		r.Trimmed += c.Trimmed
		r.Untrimmed += c.Untrimmed
		r.RejectedPace += c.RejectedPace
		r.RejectedSource += c.RejectedSource
		r.RejectedFlood += c.RejectedFlood
		r.Unwoken += c.Unwoken
		r.SourceFull += c.SourceFull
		r.Exempted += c.Exempted
		r.Held += c.Held
		r.Claimed += c.Claimed
		r.Bypassed += c.Bypassed
		r.Doubtful += c.Doubtful
		r.Untold += c.Untold
		r.HoldFull += c.HoldFull
		r.EventsLost += c.EventsLost
		for s := range signals {
			r.Samples[s] += c.Samples[s]
			r.Sum[s] += time.Duration(c.Sum[s])
		}
	}
	r.Idle = int(max(int64(rested-woken), 0)) // of different CPUs, read one after the other
	return r
}

// Histogram adds up, over all CPUs, what a target has measured of a signal
// since it was first protected. Count and Sum are left alone. While
// [Reading.Samples] is what it was there is nothing new.
func (g *Gate) Histogram(id uint32, s Signal, h *rtt.Histogram) error {
	if err := g.maps[headgateMapHistograms].Lookup(id*uint32(signals)+uint32(s), &g.histogram); err != nil {
		return fmt.Errorf("read histogram: %w", err)
	}
	h.Bucket = [rtt.Buckets]uint32{}
	for i := range g.histogram {
		for b, n := range g.histogram[i].Bucket {
			h.Bucket[b] += n
		}
	}
	return nil
}
