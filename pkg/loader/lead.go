package loader

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// leads are the maps by which what is attached to a namespace goes on to the program
// that decides for all of them (bpf/netns.h), and these.
var leads = map[string]string{
	headgateMapLookups:  headgateProgHeadgateAdmit,
	headgateMapArrivals: headgateProgHeadgatePacket,
}

// lead has the programs of all namespaces go on to those of this agent: also the
// programs of a predecessor, where its maps were taken over.
func (g *Gate) lead() error {
	for name, program := range leads {
		if p := g.progs[program]; p != nil {
			if err := g.maps[name].Put(uint32(0), p); err != nil {
				return fmt.Errorf("put %s into map %s: %w", program, name, err)
			}
		}
	}
	return nil
}

// repairLead puts back what somebody took away, and returns what was wrong.
func (g *Gate) repairLead() (what string, err error) {
	if g.links[string(HookSockops)] == nil {
		return "", nil // they are not in place yet
	}
	for name, program := range leads {
		p := g.progs[program]
		if p == nil {
			continue
		}
		info, err := p.Info()
		if err != nil {
			return fmt.Sprintf("%s cannot be looked at", program), err
		}
		ours, _ := info.ID()
		var id ebpf.ProgramID
		err = g.maps[name].Lookup(uint32(0), &id)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Sprintf("%s cannot be looked for in map %s", program, name), err
		}
		if id != ours {
			return fmt.Sprintf("somebody took %s out of map %s", program, name), g.lead()
		}
	}
	return "", nil
}

// heirlooms keep what a predecessor's programs go on to where its maps are replaced:
// the kernel empties such a map with its last pin, and they would let everything pass
// until they are replaced themselves.
func heirlooms(s *stateDir) (all []*ebpf.Map) {
	for name := range leads {
		m, err := ebpf.LoadPinnedMap(filepath.Join(s.maps(), name), nil)
		if err == nil { // else there is no predecessor, or it is a version without
			all = append(all, m)
		}
	}
	return all
}

// Disinherit lets go of what only a predecessor's programs need. Call it when none
// is attached any more.
func (g *Gate) Disinherit() {
	for _, m := range g.former {
		m.Close()
	}
	g.former = nil
}
