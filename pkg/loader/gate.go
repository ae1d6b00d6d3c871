// Package loader puts headgate's programs into the kernel and speaks with them
// through their maps. What it attaches outlives the agent: maps and links are
// pinned, and the next agent takes them over.
package loader

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// Options of [Open].
type Options struct {
	// Dir is the state directory, on a bpffs.
	Dir string

	// Targets is how many targets there are at the start. Maps that are made
	// have room for a quarter more, and for 64 at least. There is no making room
	// later: programs hold the maps, in which each target has its place.
	Targets int

	Log *slog.Logger
}

// room is what the maps have to have room for, and what new ones have, which is
// a power of two.
func (o Options) room() (least, made uint32) {
	made = 64
	for int(made) < o.Targets+o.Targets/4 {
		made *= 2
	}
	return uint32(o.Targets), made
}

// napiBudget is how many packets of a device the kernel takes at once on a CPU
// (NAPI_POLL_WEIGHT): it may show all of them to the programs on the device
// before the first reaches its socket.
const napiBudget = 64

// Gate is headgate in the kernel.
type Gate struct {
	log    *slog.Logger
	state  *stateDir
	spec   *ebpf.CollectionSpec // after Open it has no programs but those for a namespace, see embedded
	maps   map[string]*ebpf.Map
	progs  map[string]*ebpf.Program
	able   map[Capability]bool
	links  map[string]*attached
	reads  link.Link   // see WatchReads
	since  uint64      // when that began, CLOCK_MONOTONIC, ns
	former []*ebpf.Map // see heirlooms
	ids    map[TargetKey]uint32
	nextID uint32 // where a free number is looked for
	ports  *portTable
	memories
	histogram []headgateHistogram // read last, of each CPU

	sources sources

	fresh   bool // the maps are ours, not a predecessor's
	follows bool // programs of a predecessor are at work
}

// Open loads the programs and takes over the maps of a predecessor, or makes
// new ones. It attaches nothing. Errors wrap [ErrInUse], [ErrNotBPFFS],
// [ErrForeign] or [os.ErrPermission] where those apply.
func Open(o Options) (_ *Gate, err error) {
	if err := enoughFiles(); err != nil {
		return nil, err
	}
	spec, err := loadHeadgate()
	if err != nil {
		return nil, fmt.Errorf("embedded programs: %w", err)
	}
	state, err := openState(o.Dir)
	if err != nil {
		return nil, err
	}
	g := &Gate{
		log:   o.Log,
		state: state,
		spec:  spec,
		progs: make(map[string]*ebpf.Program),
		able:  make(map[Capability]bool),
		links: make(map[string]*attached),
		ids:   make(map[TargetKey]uint32),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Abandon())
		}
	}()
	if err := state.mark(); err != nil {
		g.fresh = true // without a mark there is nothing of an earlier agent's
		return nil, explain(err)
	}
	if err := os.MkdirAll(state.devices(), 0o700); err != nil {
		return nil, noState(state.devices(), err)
	}
	g.former = heirlooms(state)
	links, _ := os.ReadDir(state.links()) // there may be none
	g.follows = len(links) > 0
	least, made := o.room()
	if g.maps, g.fresh, err = openMaps(state, spec, least, made, o.Log); err != nil {
		return nil, explain(err)
	}
	if err := g.loadPrograms(); err != nil {
		return nil, explain(err)
	}
	g.spec = only(g.spec, headgateProgHeadgateLookup, headgateProgHeadgateArrive)
	if g.memories, err = openMemories(g.maps); err != nil {
		return nil, err
	}
	g.ports = &portTable{m: g.maps[headgateMapPorts], targets: uint32(len(g.states.elements))}
	if g.ids, err = g.ports.read(); err != nil {
		return nil, err
	}
	if err := g.readSources(); err != nil {
		return nil, err
	}
	return g, nil
}

// Check loads every program into the kernel and lets go of it again: what the
// kernel's verifier says, and what this kernel can do.
func Check() (map[Capability]bool, error) {
	if err := enoughFiles(); err != nil {
		return nil, err
	}
	spec, err := loadHeadgate()
	if err != nil {
		return nil, fmt.Errorf("embedded programs: %w", err)
	}
	g := &Gate{spec: spec, progs: make(map[string]*ebpf.Program), able: make(map[Capability]bool), maps: make(map[string]*ebpf.Map)}
	defer g.close()
	for _, name := range mapNames(spec) {
		if g.maps[name], err = ebpf.NewMap(spec.Maps[name]); err != nil {
			return nil, explain(fmt.Errorf("create map %s: %w", name, err))
		}
	}
	g.log = slog.New(slog.DiscardHandler)
	err = g.loadPrograms()
	return g.able, explain(err)
}

// loadPrograms loads each program by itself, so that one which this kernel
// does not take costs only what it is for. Those that nothing goes without come first:
// what one of these fails for is not what this kernel cannot do.
func (g *Gate) loadPrograms() error {
	names := slices.SortedFunc(maps.Keys(g.spec.Programs), func(a, b string) int {
		return cmp.Or(strings.Compare(string(optional[a]), string(optional[b])), strings.Compare(a, b))
	})
	for _, name := range names {
		p, err := g.load(name, nil)
		capability, canDoWithout := optional[name]
		if err == nil {
			g.progs[name] = p
			if _, known := g.able[capability]; canDoWithout && !known {
				g.able[capability] = true
			}
			continue
		}
		// Not os.ErrPermission: that is EACCES, too, which the verifier says.
		if !canDoWithout || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENOMEM) {
			return err
		}
		g.able[capability] = false
		g.log.Warn("this kernel cannot do it; going on without", "capability", capability, "otherwise", capability.Otherwise(), "reason", err)
	}
	if p := g.progs[headgateProgHeadgateArrive]; p != nil {
		g.able[CanTCX] = hasTCX(p)
	}
	return nil
}

// embedded returns what programs and maps are made of: megabytes, which are not kept
// after the start. To read them anew takes some milliseconds, so that it is not done
// for what is loaded for each new namespace.
func (g *Gate) embedded(program string) (*ebpf.CollectionSpec, error) {
	if g.spec.Programs[program] != nil {
		return only(g.spec, program), nil
	}
	spec, err := loadHeadgate()
	if err != nil {
		return nil, fmt.Errorf("embedded programs: %w", err)
	}
	return only(spec, program), nil
}

// only copies a spec with some of its programs.
func only(spec *ebpf.CollectionSpec, programs ...string) *ebpf.CollectionSpec {
	some := *spec
	some.Programs = make(map[string]*ebpf.ProgramSpec)
	for _, name := range programs {
		some.Programs[name] = spec.Programs[name]
	}
	return some.Copy()
}

// load loads one program onto the shared maps; set sets its constants.
func (g *Gate) load(name string, set func(*ebpf.CollectionSpec) error) (*ebpf.Program, error) {
	spec, err := g.embedded(name)
	if err != nil {
		return nil, err
	}
	if v := spec.Variables["most_between"]; v != nil {
		if err := v.Set(uint32(napiBudget * ebpf.MustPossibleCPU())); err != nil {
			return nil, fmt.Errorf("program %s: %w", name, err)
		}
	}
	if v := spec.Variables["hold_mark"]; v != nil {
		if err := v.Set(uint32(HoldMark)); err != nil {
			return nil, fmt.Errorf("program %s: %w", name, err)
		}
	}
	if v := spec.Variables["cpus"]; v != nil {
		if err := v.Set(uint32(ebpf.MustPossibleCPU())); err != nil {
			return nil, fmt.Errorf("program %s: %w", name, err)
		}
	}
	if v := spec.Variables["ports_mask"]; v != nil && g.maps[headgateMapPorts] != nil {
		if err := v.Set(g.maps[headgateMapPorts].MaxEntries() - 1); err != nil {
			return nil, fmt.Errorf("program %s: %w", name, err)
		}
	}
	if set != nil {
		if err := set(spec); err != nil {
			return nil, fmt.Errorf("program %s: %w", name, err)
		}
	}
	shared := make(map[string]*ebpf.Map, len(g.maps))
	for n, m := range g.maps {
		shared[n] = m
		spec.Maps[n].MaxEntries = m.MaxEntries()
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return nil, fmt.Errorf("load program %s: %w", name, err)
	}
	defer coll.Close()
	return coll.DetachProgram(name), nil
}

// Capabilities returns what the running kernel can do, by name.
func (g *Gate) Capabilities() map[Capability]bool { return g.able }

// explain says of a lack of rights which is missing, and adds to nothing else
// anything.
func explain(err error) error {
	// EPERM is bpf(2)'s, EACCES the verifier's: of programs that are wrong, and of
	// those that take CAP_PERFMON. EINVAL is what it says of helpers that take that.
	if !errors.Is(err, os.ErrPermission) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	missing := lacking(cap.GetProc())
	if len(missing) == 0 {
		if !errors.Is(err, unix.EPERM) {
			return err
		}
		// The libraries' text guesses at a limit of locked memory.
		return fmt.Errorf("load the programs: %w: the capabilities that it takes are there, so something else forbids bpf(2), such as a seccomp profile or the kernel's lockdown", unix.EPERM)
	}
	return fmt.Errorf("load the programs: %w: run as root, or with %s, which this process has not", unix.EPERM, strings.Join(missing, " and "))
}

// lacking names those of the capabilities of every agent that a set has not got
// in effect.
func lacking(has *cap.Set) (names []string) {
	for _, c := range []cap.Value{cap.BPF, cap.NET_ADMIN, cap.PERFMON} {
		if there, err := has.GetFlag(cap.Effective, c); err == nil && !there {
			names = append(names, strings.ToUpper(c.String()))
		}
	}
	return names
}

// Fresh says whether nothing was taken over from a predecessor, or could be.
func (g *Gate) Fresh() bool { return g.fresh }

// Follows says whether there were programs of a predecessor at work when this one
// was opened.
func (g *Gate) Follows() bool { return g.follows }

// Close lets go of the kernel side and leaves it in place, pinned: counting
// goes on, and the gates open when the lease runs out.
func (g *Gate) Close() error { return g.close() }

// Abandon undoes what was made since Open and leaves what was there before:
// for a start that fails.
func (g *Gate) Abandon() error {
	var errs []error
	for name, l := range g.links {
		if l.fresh {
			errs = append(errs, g.detach(name))
		}
	}
	if left, err := os.ReadDir(g.state.links()); g.fresh && (err != nil || len(left) == 0) {
		errs = append(errs, g.state.abandon())
	}
	return errors.Join(append(errs, g.close())...)
}

// Remove detaches and unpins everything.
func (g *Gate) Remove() error {
	err := g.state.remove()
	return errors.Join(err, g.close())
}

func (g *Gate) close() error {
	for _, l := range g.links {
		l.close()
	}
	if g.reads != nil {
		g.reads.Close()
	}
	g.Disinherit()
	for _, p := range g.progs {
		p.Close()
	}
	g.ids = nil // their elements are gone, too
	err := g.memories.close()
	closeMaps(g.maps)
	if g.state == nil {
		return err
	}
	return errors.Join(err, g.state.close())
}
