package loader

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// memory is an array that this process and the programs have in common: what one
// writes the other sees at once, word by word. Words of an element that are read one
// after the other, or copied, need not have been there at the same time.
type memory[V any] struct {
	elements []V // with the layout of C, and no pointers
	mapped   []byte
}

func openMemory[V any](m *ebpf.Map) (memory[V], error) {
	var v V
	if m.ValueSize() != uint32(unsafe.Sizeof(v)) || unsafe.Sizeof(v)%8 != 0 {
		return memory[V]{}, fmt.Errorf("map %s: elements of %d bytes, not %d", m, m.ValueSize(), unsafe.Sizeof(v))
	}
	n := int(m.MaxEntries())
	mapped, err := unix.Mmap(m.FD(), 0, n*int(unsafe.Sizeof(v)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return memory[V]{}, fmt.Errorf("map %s: mmap: %w", m, err)
	}
	return memory[V]{unsafe.Slice((*V)(unsafe.Pointer(unsafe.SliceData(mapped))), n), mapped}, nil
}

func (m *memory[V]) close() error {
	if m.mapped == nil {
		return nil
	}
	mapped := m.mapped
	*m = memory[V]{}
	return unix.Munmap(mapped)
}

// memories are what is read and written of all targets in each window.
type memories struct {
	confs    memory[headgateTargetConf]
	states   memory[headgateTargetState]
	cohorts  memory[headgateCohort]
	counters memory[headgateTargetCounters] // cpus for each target
	cpus     int

	tallies memory[headgateTally] // by a recount
}

func openMemories(maps map[string]*ebpf.Map) (m memories, err error) {
	var errs [5]error
	m.confs, errs[0] = openMemory[headgateTargetConf](maps[headgateMapConfs])
	m.states, errs[1] = openMemory[headgateTargetState](maps[headgateMapStates])
	m.cohorts, errs[2] = openMemory[headgateCohort](maps[headgateMapCohorts])
	m.counters, errs[3] = openMemory[headgateTargetCounters](maps[headgateMapCounters])
	m.tallies, errs[4] = openMemory[headgateTally](maps[headgateMapTallies])
	m.cpus = ebpf.MustPossibleCPU()
	return m, errors.Join(errs[:]...)
}

// of says whether there is a target of a number, so that its elements can be used:
// once the memories are closed there is none, and the error is an [os.ErrClosed].
func (m *memories) of(id uint32) error {
	switch n := len(m.states.elements); {
	case n == 0:
		return fmt.Errorf("target %d: the gate: %w", id, os.ErrClosed)
	case uint64(id) >= uint64(n):
		return fmt.Errorf("target %d: there is room for %d", id, n)
	}
	return nil
}

func (m *memories) close() error {
	return errors.Join(m.confs.close(), m.states.close(), m.cohorts.close(), m.counters.close(), m.tallies.close())
}
