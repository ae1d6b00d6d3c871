package loader

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// The table of bpf/types.h that says which target a key is.
const (
	portFree  = 0 // a search ends here
	portTaken = 1 // here was a target: a search goes on

	portsPerTarget = 4
	probes         = 16

	// maxCookie is the largest cookie that a key has room for.
	maxCookie = 1<<48 - 1
)

func (k TargetKey) pack() uint64 { return k.Netns<<16 | uint64(k.Port) }

// portTable is written by the one agent that holds the state directory, and
// searched by the programs at the same time.
type portTable struct {
	m       *ebpf.Map
	targets uint32 // numbers that there is room for
}

// read returns every target of the table, but for those that can be none.
func (t *portTable) read() (map[TargetKey]uint32, error) {
	ids := make(map[TargetKey]uint32)
	for place := range t.m.MaxEntries() {
		p, err := t.at(place)
		if err != nil {
			return nil, err
		}
		if p.Key > portTaken && p.Target < t.targets {
			ids[TargetKey{Netns: p.Key >> 16, Port: uint16(p.Key)}] = p.Target
		}
	}
	return ids, nil
}

func (t *portTable) at(place uint32) (headgatePort, error) {
	var p headgatePort
	if err := t.m.Lookup(place, &p); err != nil {
		return p, fmt.Errorf("read targets: %w", err)
	}
	return p, nil
}

// search calls f with each place where a key may be, in order, until it says
// stop.
func (t *portTable) search(key uint64, f func(place uint32, p headgatePort) (stop bool, err error)) error {
	begin := uint32(key * 0x9e3779b97f4a7c15 >> 32)
	for i := range uint32(probes) {
		place := (begin + i) & (t.m.MaxEntries() - 1)
		p, err := t.at(place)
		if err != nil {
			return err
		}
		stop, err := f(place, p)
		if stop || err != nil {
			return err
		}
	}
	return ErrFull
}

// add enters a target that is not in the table. [ErrFull] when it finds no
// place near enough.
func (t *portTable) add(key TargetKey, target uint32) error {
	return t.search(key.pack(), func(place uint32, p headgatePort) (bool, error) {
		if p.Key > portTaken {
			return false, nil
		}
		// The key last: who finds it must find the right number.
		p.Target = target
		err := t.m.Put(place, p)
		if err == nil {
			p.Key = key.pack()
			err = t.m.Put(place, p)
		}
		return true, err
	})
}

// sweep has searches end again at a place that was taken, and at those before it,
// where nothing comes behind: else, as targets come and go, none would end early.
func (t *portTable) sweep(place uint32) error {
	last := t.m.MaxEntries() - 1
	next, err := t.at((place + 1) & last)
	if err != nil || next.Key != portFree {
		return err
	}
	for range t.m.MaxEntries() {
		p, err := t.at(place)
		if err != nil || p.Key != portTaken {
			return err
		}
		if err := t.m.Put(place, headgatePort{}); err != nil {
			return err
		}
		place = (place - 1) & last
	}
	return nil
}

// remove takes a target out.
func (t *portTable) remove(key TargetKey) error {
	err := t.search(key.pack(), func(place uint32, p headgatePort) (bool, error) {
		if p.Key != key.pack() {
			return p.Key == portFree, nil
		}
		p.Key = portTaken
		if err := t.m.Put(place, p); err != nil {
			return true, err
		}
		return true, t.sweep(place)
	})
	if errors.Is(err, ErrFull) {
		return nil // it was not in it
	}
	return err
}
