package loader

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// classKey is a class of a target.
type classKey struct {
	target uint32
	class  int
}

// classUnits are the units of a class that have a slot, and that wait.
type classUnits struct{ inFlight, waiting int }

// parties is what is counted of sources and classes, or found, or by how much
// the former is more. Nothing is there that is 0.
type parties struct {
	sources map[uint64]int
	classes map[classKey]classUnits
}

func newParties() parties {
	return parties{make(map[uint64]int), make(map[classKey]classUnits)}
}

func (p parties) none() bool { return len(p.sources) == 0 && len(p.classes) == 0 }

// less returns by how much p is more than q.
func (p parties) less(q parties) parties {
	d := newParties()
	for key, n := range p.sources {
		d.addSource(key, n)
	}
	for key, n := range q.sources {
		d.addSource(key, -n)
	}
	for key, n := range p.classes {
		d.addClass(key, n)
	}
	for key, n := range q.classes {
		d.addClass(key, classUnits{-n.inFlight, -n.waiting})
	}
	return d
}

func (p parties) addSource(key uint64, n int) {
	if p.sources[key] += n; p.sources[key] == 0 {
		delete(p.sources, key)
	}
}

func (p parties) addClass(key classKey, n classUnits) {
	was := p.classes[key]
	n.inFlight += was.inFlight
	n.waiting += was.waiting
	if n == (classUnits{}) {
		delete(p.classes, key)
		return
	}
	p.classes[key] = n
}

// common is what both have proven.
func (p parties) common(q parties) parties {
	both := newParties()
	for key, n := range p.sources {
		both.addSource(key, agree(n, q.sources[key]))
	}
	for key, n := range p.classes {
		m := q.classes[key]
		both.addClass(key, classUnits{agree(n.inFlight, m.inFlight), agree(n.waiting, m.waiting)})
	}
	return both
}

// isGrouped says whether any target counts its units by source or class.
func (r *recount) isGrouped() (bool, error) {
	for _, id := range r.ids {
		// Not from memory: the agent may be writing there.
		var conf headgateTargetConf
		if err := r.gate.maps[headgateMapConfs].Lookup(id, &conf); err != nil {
			return false, fmt.Errorf("recount: %w", err)
		}
		if conf.Flags&headgateTargetFlagsTARGET_PARTIES != 0 {
			return true, nil
		}
	}
	return false, nil
}

// countedParties reads what is counted.
func (r *recount) countedParties() (parties, error) {
	const count = 1<<24 - 1 // SOURCE_COUNT; as large a one is that of a source that is being removed
	p := newParties()
	n, err := r.readWords(r.gate.maps[headgateMapSourceCounts].BatchLookup)
	if err != nil {
		return p, err
	}
	for i, key := range r.keys[:n] {
		if here := r.words[i] & count; here != count {
			p.addSource(key, int(here))
		}
	}
	for _, id := range r.ids {
		var parts headgateParts
		if err := r.gate.maps[headgateMapClasses].Lookup(id, &parts); err != nil {
			return p, err
		}
		for class := classOthers; class < len(parts.Class); class++ {
			c := &parts.Class[class]
			p.addClass(classKey{id, class}, classUnits{int(c.Own + c.Free), int(c.Waiting)})
		}
	}
	return p, nil
}

// foundParties takes what was found.
func (r *recount) foundParties() (parties, error) {
	p := newParties()
	n, err := r.readWords(r.gate.maps[headgateMapTallySources].BatchLookupAndDelete)
	if err != nil {
		return p, err
	}
	for i, key := range r.keys[:n] {
		p.addSource(key, int(r.words[i]))
	}
	for _, id := range r.ids {
		t := &r.gate.tallies.elements[id]
		for class := classOthers; class < len(t.Class); class++ {
			p.addClass(classKey{id, class}, classUnits{int(t.Class[class]), int(t.ClassWaiting[class])})
		}
	}
	return p, nil
}

// readWords reads a whole map of words at once.
func (r *recount) readWords(batch func(*ebpf.MapBatchCursor, any, any, *ebpf.BatchOptions) (int, error)) (int, error) {
	if r.keys == nil {
		room := r.gate.maps[headgateMapSourceCounts].MaxEntries()
		r.keys, r.words = make([]uint64, room), make([]uint64, room)
	}
	var at ebpf.MapBatchCursor
	n, err := batch(&at, r.keys, r.words, nil)
	if errors.Is(err, ebpf.ErrKeyNotExist) { // the end of the map is told as that
		err = nil
	}
	return n, err
}

func (g *Gate) correctParties(d parties) error {
	for party, n := range d.sources {
		if err := g.correctParty(headgatePartyCorrection{Party: party, OfSource: int32(n)}); err != nil {
			return err
		}
	}
	for key, n := range d.classes {
		if err := g.correctParty(headgatePartyCorrection{
			Party: uint64(key.class), Target: key.target, InFlight: int32(n.inFlight), Waiting: int32(n.waiting),
		}); err != nil {
			return err
		}
	}
	return nil
}

func (g *Gate) correctParty(by headgatePartyCorrection) error {
	if _, err := g.progs[headgateProgHeadgateCorrectParty].Run(&ebpf.RunOptions{Context: by}); err != nil {
		return fmt.Errorf("correct a count of a source or class: %w", err)
	}
	return nil
}
