package loader

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"headgate/pkg/scope"
)

const (
	// mostPasses are made at most until no drift is left open. On a server that is
	// not at its busiest one or two are enough; see BenchmarkRecount for what one
	// takes.
	mostPasses = 24

	// proofs are needed before anything is corrected, and between two of them
	// every program that ran has ended. A program that was stopped in the midst
	// of counting something, by an interrupt or because the machine is a virtual
	// one, can spoil one of them.
	proofs = 3
)

// Recounted is the outcome of a recount.
type Recounted struct {
	Drift map[uint32]Drift // what was corrected, of the targets where something was

	// Sources and Classes is of how many the count was corrected.
	Sources, Classes int

	// Blind is how many connections there are whose end this kernel does not
	// tell: they are older than the programs, and it is older than Linux 6.12.
	// Their end shows when the application closes them, or at a recount.
	Blind int
}

// Walk is a namespace whose connections a recount has counted that are not, as
// [Gate.Adopt] does.
type Walk struct {
	Netns *scope.Netns

	// Always: also if there are none. Those that are known may be counted by what
	// was to be counted before.
	Always bool
}

// Recount compares what is counted of targets with what there is, and corrects
// what is certain to be wrong. Before that it makes its walks, those that there is
// a reason for, and settles what was doubtful. Where the kernel cannot compare
// ([CanRecount]) it makes all of them, and no more.
//
// Nothing is stopped for that: units begin and end meanwhile. What is certain is
// worked out from how many did, see [spans]; so a recount may leave a drift that
// the next one, at a calmer moment, corrects, but it never makes one. Only one may
// run at a time; targets are added and retired meanwhile, so that those to compare
// are a copy of [Gate.Targets] that nobody changes.
func (g *Gate) Recount(targets map[TargetKey]uint32, walks ...Walk) (Recounted, error) {
	out := Recounted{Drift: make(map[uint32]Drift)}
	if !g.able[CanRecount] {
		for _, w := range walks {
			if err := g.Adopt(w.Netns); err != nil {
				return out, err
			}
		}
		return out, nil
	}
	it, err := link.AttachIter(link.IterOptions{Program: g.progs[headgateProgHeadgateRecount], Map: g.maps[headgateMapConns]})
	if err != nil {
		return out, fmt.Errorf("recount: %w", err)
	}
	defer it.Close()
	r := newRecount(g, targets, it)
	if err := errors.Join(r.adopt(walks, out.Drift), g.Settle()); err != nil {
		return out, err
	}
	if r.grouped, err = r.isGrouped(); err != nil {
		return out, err
	}
	if r.grouped {
		if _, err := r.foundParties(); err != nil { // of one that was interrupted
			return out, fmt.Errorf("recount: %w", err)
		}
	}
	drift, of, err := r.prove()
	for range proofs - 1 {
		if err != nil || len(drift) == 0 && of.none() {
			break
		}
		grace()
		var again map[uint32]Drift
		var ofAgain parties
		if again, ofAgain, err = r.prove(); err == nil {
			drift, of = common(drift, again), of.common(ofAgain)
		}
	}
	if err == nil {
		err = g.correctParties(of)
	}
	if err != nil {
		return out, err
	}
	out.Sources, out.Classes = len(of.sources), len(of.classes)
	for id, d := range drift {
		if err := g.correct(id, d); err != nil {
			return out, err
		}
		d.InFlight += out.Drift[id].InFlight
		out.Drift[id] = d
	}
	out.Blind = r.blind
	return out, nil
}

// recount is one that goes on.
type recount struct {
	gate          *Gate
	targets       map[TargetKey]uint32
	ids           []uint32 // of targets
	it            *link.Iter
	before, after []counted // of each of ids
	blind         int

	// grouped: units are counted by source or class, too; keys and words are to
	// read these.
	grouped     bool
	keys, words []uint64
}

func newRecount(g *Gate, targets map[TargetKey]uint32, it *link.Iter) *recount {
	ids := slices.Collect(maps.Values(targets))
	return &recount{gate: g, targets: targets, ids: ids, it: it, before: make([]counted, len(ids)), after: make([]counted, len(ids))}
}

// adopt has connections counted that are not.
func (r *recount) adopt(walks []Walk, missed map[uint32]Drift) error {
	ports := make(map[uint64]map[uint16]uint32)
	for key, id := range r.targets {
		if ports[key.Netns] == nil {
			ports[key.Netns] = make(map[uint16]uint32)
		}
		ports[key.Netns][key.Port] = id
	}
	walks = slices.DeleteFunc(slices.Clone(walks), func(w Walk) bool {
		return !w.Always && !r.gate.Misses(w.Netns, ports[w.Netns.Cookie()])
	})
	if len(walks) == 0 {
		return nil
	}
	r.readCounters(r.before)
	for _, w := range walks {
		if err := r.gate.Adopt(w.Netns); err != nil {
			return err
		}
	}
	r.readCounters(r.after)
	for i, id := range r.ids {
		if n := int(r.after[i].adopted - r.before[i].adopted); n > 0 {
			missed[id] = Drift{InFlight: -n}
		}
	}
	return nil
}

// Misses says whether a namespace may have connections that are to be counted and
// are not: connections to the ports of its targets, whose numbers these are.
func (g *Gate) Misses(ns *scope.Netns, ids map[uint16]uint32) (some bool) {
	if len(ids) == 0 {
		return false
	}
	ports := slices.Sorted(maps.Keys(ids))
	err := ns.Do(func() error {
		return scope.NotStored(g.maps[headgateMapConns].FD(), ports[0], ports[len(ports)-1], func(port uint16, client netip.Addr) (more bool) {
			id, ours := ids[port]
			some = ours && !g.exempts(id, client)
			return !some
		})
	})
	return some || err != nil
}

// Settle ends the requests that nobody else ends, see [Reading]: those of all
// targets. Where the kernel cannot look through the connections that are known
// ([CanRecount]) it takes all of the namespaces, as [Gate.Adopt] does.
func (g *Gate) Settle(all ...*scope.Netns) error {
	p := g.progs[headgateProgHeadgateSettle]
	if p == nil {
		for _, ns := range all {
			if err := g.Adopt(ns); err != nil {
				return fmt.Errorf("settle requests: %w", err)
			}
		}
		return nil
	}
	it, err := link.AttachIter(link.IterOptions{Program: p, Map: g.maps[headgateMapConns]})
	if err != nil {
		return fmt.Errorf("settle requests: %w", err)
	}
	defer it.Close()
	if err := walk(it); err != nil {
		return fmt.Errorf("settle requests: %w", err)
	}
	return nil
}

// walk has an iterator run to its end.
func walk(it *link.Iter) error {
	r, err := it.Open()
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r)
	return errors.Join(err, r.Close())
}

// prove looks until it knows, or has looked often enough, and returns what is
// certain. Of sources and classes nobody counts how much begins and ends: of
// these only a pass tells during which no unit did either.
func (r *recount) prove() (map[uint32]Drift, parties, error) {
	open := make(map[uint32]*[quantities]span, len(r.ids))
	of, known := newParties(), !r.grouped
	for range mostPasses {
		counted, found, err := r.pass()
		if err != nil {
			return nil, of, fmt.Errorf("recount: %w", err)
		}
		all, calm := true, true
		r.blind = 0
		for i, id := range r.ids {
			tally := &r.gate.tallies.elements[id]
			r.blind += int(tally.Blind)
			now := spans(r.before[i], r.after[i], tally.found())
			calm = calm && now[inFlight].exact() && now[waiting].exact()
			for q := range now {
				if was := open[id]; was != nil {
					now[q] = now[q].meet(was[q])
				}
				all = all && now[q].exact()
			}
			open[id] = &now
		}
		if calm && !known {
			of, known = counted.less(found), true
		}
		if all && known {
			break
		}
	}
	drift := make(map[uint32]Drift)
	for id, s := range open {
		d := Drift{s[inFlight].proven(), s[waiting].proven(), s[pending].proven(), s[connections].proven(), s[idle].proven()}
		if !d.none() {
			drift[id] = d
		}
	}
	return drift, of, nil
}

// pass looks once. The order makes what happens meanwhile count as more, never
// as less: the programs change a number first, and say then that they did.
func (r *recount) pass() (counted, found parties, err error) {
	r.readCounters(r.before)
	barrier()
	r.readStates(r.before)
	if r.grouped {
		if counted, err = r.countedParties(); err != nil {
			return
		}
	}
	if _, err = r.gate.progs[headgateProgHeadgateTally].Run(&ebpf.RunOptions{}); err != nil {
		return
	}
	if err = walk(r.it); err != nil {
		return
	}
	r.readStates(r.after)
	barrier()
	r.readCounters(r.after)
	if r.grouped {
		found, err = r.foundParties()
	}
	return
}

func (t *headgateTally) found() found {
	return found{
		inFlight:    int(t.Pending + t.Slots),
		waiting:     int(t.Held + t.Waiting),
		pending:     int(t.Pending),
		connections: int(t.Connections),
		idle:        int(t.Idle),
	}
}

// readStates reads the numbers that go up and down.
func (r *recount) readStates(into []counted) {
	for i, id := range r.ids {
		st := r.gate.states.elements[id]
		n := &into[i].n
		n[inFlight] = int(uint32(st.Units))
		n[waiting] = int(st.Units >> 32)
		n[pending] = int(int32(st.Pending))
		n[connections] = int(int32(st.Connections))
	}
}

// readCounters reads how often something happened, and how many are idle, which
// these tell.
func (r *recount) readCounters(into []counted) {
	for i, id := range r.ids {
		c := counted{n: into[i].n}
		for _, cpu := range r.gate.countersOf(id) {
			c.adopted += cpu.Adopted
			c.converted += cpu.Converted
			c.finished += cpu.Finished
			c.expired += cpu.Expired
			c.held += cpu.Held
			c.established += cpu.Samples[Handshake]
			c.rested += cpu.Rested
			c.woken += cpu.Woken
		}
		c.n[idle] = int(c.rested - c.woken)
		into[i] = c
	}
}

// barrier has what follows read after what came before: atomic operations of Go
// are in one order, with all that is around them.
func barrier() {
	var a atomic.Uint32
	a.Add(1)
}

// common is what both have proven.
func common(a, b map[uint32]Drift) map[uint32]Drift {
	both := make(map[uint32]Drift)
	for id, x := range a {
		y := b[id]
		d := Drift{
			agree(x.InFlight, y.InFlight), agree(x.Waiting, y.Waiting), agree(x.Pending, y.Pending),
			agree(x.Connections, y.Connections), agree(x.Idle, y.Idle),
		}
		if !d.none() {
			both[id] = d
		}
	}
	return both
}

func (g *Gate) correct(id uint32, d Drift) error {
	by := headgateCorrection{
		Target:      id,
		InFlight:    int32(d.InFlight),
		Waiting:     int32(d.Waiting),
		Pending:     int32(d.Pending),
		Connections: int32(d.Connections),
		Idle:        int32(d.Idle),
	}
	if _, err := g.progs[headgateProgHeadgateCorrect].Run(&ebpf.RunOptions{Context: by}); err != nil {
		return fmt.Errorf("correct a count: %w", err)
	}
	return nil
}

// grace returns when every program that runs now has ended: all run inside of
// RCU's read side, and what membarrier(2) waits for is that.
func grace() {
	const global = 1 << 0 // MEMBARRIER_CMD_GLOBAL of linux/membarrier.h
	if _, _, err := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); err != 0 {
		time.Sleep(50 * time.Millisecond) // not where CPUs run without a tick
	}
}
