package loader

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// What is attached to namespaces goes on to the one program that decides by way of
// a map, of which it has the first element (bpf/netns.h).

// lead has the programs of all namespaces go on to the one of this agent, those of
// a predecessor with the same maps too.
func (g *Gate) lead() error {
	if err := g.maps[headgateMapLookups].Put(uint32(0), g.progs[headgateProgHeadgateAdmit]); err != nil {
		return fmt.Errorf("put the program of all namespaces in its place: %w", err)
	}
	return nil
}

// repairLead puts it back where somebody took it away, and returns what was wrong.
func (g *Gate) repairLead() (what string, err error) {
	led := false
	for _, a := range g.links {
		led = led || a.hook == HookLookup
	}
	if !led {
		return "", nil
	}
	info, err := g.progs[headgateProgHeadgateAdmit].Info()
	if err != nil {
		return "the program of all namespaces cannot be looked at", err
	}
	ours, _ := info.ID()
	var id ebpf.ProgramID
	err = g.maps[headgateMapLookups].Lookup(uint32(0), &id)
	switch {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return "somebody took the program of all namespaces away", g.lead()
	case err != nil:
		return "the program of all namespaces cannot be looked for", err
	case id != ours:
		return fmt.Sprintf("somebody put program %d in place of that of all namespaces", id), g.lead()
	}
	return "", nil
}

// heir keeps what a predecessor's programs go on to where its maps are replaced: the
// kernel empties such a map with its last pin, and they would let everything pass
// until they are replaced themselves. Nil where there is none.
func heir(s *stateDir) *ebpf.Map {
	m, err := ebpf.LoadPinnedMap(filepath.Join(s.maps(), headgateMapLookups), nil)
	if err != nil {
		return nil // of a version without, or none
	}
	return m
}

// disinherit ends that.
func (g *Gate) disinherit() {
	if g.former != nil {
		g.former.Close()
		g.former = nil
	}
}
