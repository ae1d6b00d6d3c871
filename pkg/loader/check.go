package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"headgate/pkg/program"
	"headgate/pkg/scope"
)

// HookState is no place for a program: it names the state directory in a
// [Trouble].
const HookState Hook = "state"

// Trouble is something of ours in the kernel that somebody has changed.
type Trouble struct {
	Hook     Hook
	What     string
	Repaired bool
}

// Foreign is a program of somebody else.
type Foreign struct {
	ID   ebpf.ProgramID
	Name string // "" where the kernel does not tell us
}

// Repair looks whether everything is attached and pinned as it was, and puts
// back what can be put back. It costs some system calls for each program.
func (g *Gate) Repair() []Trouble {
	var found []Trouble
	for _, name := range slices.Sorted(maps.Keys(g.links)) {
		a := g.links[name]
		if what, err := g.repairLink(name, a); err != nil {
			found = append(found, Trouble{a.hook, fmt.Sprintf("%s, and cannot be attached again: %v", what, err), false})
		} else if what != "" {
			found = append(found, Trouble{a.hook, what + "; it is attached again", true})
		}
	}
	if what, err := g.repairLead(); err != nil {
		found = append(found, Trouble{HookState, fmt.Sprintf("%s, and cannot be put back: %v", what, err), false})
	} else if what != "" {
		found = append(found, Trouble{HookState, what + "; it is there again", true})
	}
	if what, err := g.repairPins(); err != nil {
		found = append(found, Trouble{HookState, fmt.Sprintf("%s: %v", what, err), false})
	} else if what != "" {
		found = append(found, Trouble{HookState, what + "; they are there again", true})
	}
	return found
}

// repairLink returns what was wrong with a link, and an error if it still is.
func (g *Gate) repairLink(name string, a *attached) (what string, err error) {
	if !alive(a.link) {
		if a.gone() {
			return "", nil // and nobody in it to miss it
		}
		l, err := a.again()
		if err != nil {
			return "somebody detached the program", explain(err)
		}
		a.link.Close()
		a.link = l
		if err := errors.Join(remove(g.state.link(name)), g.pin(name, l)); err != nil {
			g.log.Warn("a program is attached again, but not pinned", "hook", a.hook, "reason", err)
		}
		return "somebody detached the program", nil
	}
	info, err := a.link.Info()
	if err != nil {
		return "the program cannot be looked at", err
	}
	ours, err := a.prog.Info()
	if err != nil {
		return "the program cannot be looked at", err
	}
	if id, _ := ours.ID(); info.Program != id {
		return fmt.Sprintf("somebody put program %d in place of ours", info.Program), a.link.Update(a.prog)
	}
	return "", nil
}

func (g *Gate) pin(name string, l link.Link) error {
	if g.state.hidden() {
		return nil // that is told anyway
	}
	return l.Pin(g.state.link(name))
}

// repairPins pins again what somebody unpinned: without that it would end with
// this process.
func (g *Gate) repairPins() (what string, err error) {
	if g.state.hidden() {
		return "the state directory is hidden", fmt.Errorf("another file system is mounted over %s, or its own was unmounted; undo that, or the next agent finds nothing and counts anew", g.state.path)
	}
	missing := 0
	for name, m := range g.maps {
		if pin := filepath.Join(g.state.maps(), name); !exists(pin) {
			missing++
			err = errors.Join(err, g.state.restore(), m.Unpin(), m.Pin(pin))
		}
	}
	if pin := filepath.Join(g.state.maps(), layoutMap); !exists(pin) {
		missing++
		err = errors.Join(err, g.state.restore(), g.pinLayout(pin))
	}
	for name, a := range g.links {
		if pin := g.state.link(name); !exists(pin) {
			missing++
			err = errors.Join(err, g.state.restore(), a.link.Unpin(), a.link.Pin(pin))
		}
	}
	if missing == 0 {
		return "", nil
	}
	return fmt.Sprintf("somebody removed %d pins from %s", missing, g.state.path), err
}

// pinLayout makes the note of what the maps contain.
func (g *Gate) pinLayout(path string) error {
	m, err := newLayout(g.spec)
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Pin(path)
}

// Others returns the programs of others at a namespace's hook for lookups. The
// kernel runs all of them, in whatever order: one that chooses a socket for a
// connection lets it in, whatever ours says.
func (g *Gate) Others(ns *scope.Netns) ([]Foreign, error) {
	on, err := link.QueryPrograms(link.QueryOptions{Target: ns.Fd(), Attach: ebpf.AttachSkLookup})
	if err != nil {
		return nil, fmt.Errorf("programs at %s: %w", HookLookup, err)
	}
	var all []Foreign
	for _, p := range on.Programs {
		if !g.isOurs(p.ID) {
			all = append(all, Foreign{p.ID, program.Name(p.ID)})
		}
	}
	return all, nil
}

func (g *Gate) isOurs(id ebpf.ProgramID) bool {
	for _, a := range g.links {
		if info, err := a.link.Info(); err == nil && info.Program == id {
			return true
		}
	}
	return false
}

// hidden says whether the directory is still there but not to be seen, because
// another file system is mounted over it or over one of its parents.
func (s *stateDir) hidden() bool {
	var ours, seen unix.Stat_t
	if unix.Fstat(int(s.lock.Fd()), &ours) != nil {
		return false
	}
	for at := s.path; ; at = filepath.Dir(at) {
		err := unix.Stat(at, &seen)
		if err == nil {
			return seen.Dev != ours.Dev
		}
		if at == filepath.Dir(at) {
			return false
		}
	}
}

// restore makes the directories again that somebody removed, and takes the lock
// on them.
func (s *stateDir) restore() error {
	if err := os.MkdirAll(s.path, 0o700); err != nil {
		return noState(s.path, err)
	}
	if err := s.mark(); err != nil {
		return err
	}
	for _, dir := range []string{s.maps(), s.links(), s.devices()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return noState(dir, err)
		}
	}
	var ours, seen unix.Stat_t
	if err := errors.Join(unix.Fstat(int(s.lock.Fd()), &ours), unix.Stat(s.path, &seen)); err != nil {
		return noState(s.path, err)
	}
	if ours.Ino == seen.Ino {
		return nil
	}
	again, err := openState(s.path)
	if err != nil {
		return err
	}
	s.lock.Close()
	s.lock = again.lock
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// remove removes a file that may not be there.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// inodeOf is 0 for what is not there.
func inodeOf(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}
