package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Tree is a mounted cgroup2 hierarchy, by its root directory.
type Tree string

// Find returns the paths below the root that a pattern means, sorted. Cgroups
// that cannot be read, since they are gone or not for us, are not among them.
func (t Tree) Find(p Pattern) ([]string, error) {
	var found []string
	err := t.find(p, "", skip(p.names, []int{0}), &found)
	slices.Sort(found)
	return found, err
}

// find looks below a cgroup, which has led to places in the pattern.
func (t Tree) find(p Pattern, cgroup string, at []int, found *[]string) error {
	if len(at) == 0 {
		return nil
	}
	names, ok := p.only(at)
	if !ok {
		var err error
		if names, err = t.children(cgroup); err != nil {
			return err
		}
	}
	for _, name := range names {
		next := p.step(at, name)
		if len(next) == 0 {
			continue
		}
		child := path.Join(cgroup, name)
		if ok { // it was not seen, but named
			var st unix.Stat_t
			if err := unix.Stat(t.dir(child), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
				continue
			}
		}
		if slices.Contains(next, len(p.names)) {
			*found = append(*found, child)
		}
		if err := t.find(p, child, next, found); err != nil {
			return err
		}
	}
	return nil
}

// only returns the names that can come next, if these need not be looked for.
func (p Pattern) only(at []int) ([]string, bool) {
	var names []string
	for _, i := range at {
		switch {
		case i == len(p.names):
		case !literal(p.names[i]):
			return nil, false
		case !slices.Contains(names, p.names[i]):
			names = append(names, p.names[i])
		}
	}
	return names, true
}

// Group is a cgroup with all that are below it.
type Group struct {
	IDs map[uint64]bool // as programs and sockets know them

	// Netns are the network namespaces of the processes, by inode number, those
	// nearest to the top first, and of these that of the lowest process id.
	Netns []Process
}

// Process is one that is in a network namespace.
type Process struct {
	PID   int
	Netns uint64 // inode number
}

// ErrHidden means that there are processes which cannot be seen from here.
var ErrHidden = errors.New("its processes cannot be seen from the agent's PID namespace: it needs that of the host (hostPID: true)")

// Group looks at a cgroup and all below it. A cgroup that is gone has no
// processes. With an error it is what could be seen.
func (t Tree) Group(cgroup string) (Group, error) {
	g := Group{IDs: make(map[uint64]bool)}
	var errs []error
	seen := make(map[uint64]bool)
	for level := []string{cgroup}; len(level) > 0; {
		var below []string
		var here []int
		for _, c := range level {
			var st unix.Stat_t
			if err := unix.Stat(t.dir(c), &st); err != nil {
				continue
			}
			g.IDs[st.Ino] = true
			pids, err := t.processes(c)
			here = append(here, pids...)
			errs = append(errs, err)
			names, err := t.children(c)
			errs = append(errs, err)
			for _, name := range names {
				below = append(below, path.Join(c, name))
			}
		}
		slices.Sort(here)
		for _, pid := range here {
			inode, err := netnsOf(pid)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if inode != 0 && !seen[inode] {
				seen[inode] = true
				g.Netns = append(g.Netns, Process{PID: pid, Netns: inode})
			}
		}
		level = below
	}
	return g, firstOf(errs)
}

// firstOf returns the first error: the others are, as a rule, the same for other
// processes.
func firstOf(errs []error) error {
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if i < 0 {
		return nil
	}
	return errs[i]
}

// processes returns the processes in a cgroup itself.
func (t Tree) processes(cgroup string) ([]int, error) {
	text, err := readFile(filepath.Join(t.dir(cgroup), "cgroup.procs"))
	switch {
	case gone(err), errors.Is(err, unix.EOPNOTSUPP): // of a threaded one, those are in its parent
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("processes of a cgroup: %w", err)
	}
	var pids []int
	for line := range strings.Lines(string(text)) {
		pid := 0
		for _, c := range strings.TrimSuffix(line, "\n") {
			pid = pid*10 + int(c-'0')
		}
		if pid == 0 {
			return pids, ErrHidden
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// readFile is os.ReadFile without the runtime's poller, which would be told of each
// file that could be waited for, as these can.
func readFile(name string) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	text := make([]byte, 0, 4096)
	for {
		n, err := unix.Read(fd, text[len(text):cap(text)])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, err
		case n == 0:
			return text, nil
		default:
			text = slices.Grow(text[:len(text)+n], 2048)
		}
	}
}

// netnsOf returns the network namespace of a process, 0 when it has none any more.
func netnsOf(pid int) (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat(NetnsPath(pid), &st)
	switch {
	case gone(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("the network namespace of process %d: %w", pid, err)
	}
	return st.Ino, nil
}

// errNotAllowed means that the processes of others are nobody's business here.
var errNotAllowed = fmt.Errorf("%w: to see which network namespace a process of others is in takes CAP_SYS_PTRACE", unix.EPERM)

// Allowed returns an error when the agent has not the right to see that.
func Allowed() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	if sets[0].Effective&(1<<unix.CAP_SYS_PTRACE) == 0 {
		return errNotAllowed
	}
	return nil
}

// NetnsPath is where the network namespace of a process is.
func NetnsPath(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// gone says whether a cgroup or process has ended meanwhile.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH)
}

func (t Tree) dir(cgroup string) string { return filepath.Join(string(t), cgroup) }

// leafLinks is how many links a directory without others in it has. That the
// kernel counts these spares reading the many files of each cgroup.
const leafLinks = 2

// children returns the names of the cgroups right below one.
func (t Tree) children(cgroup string) ([]string, error) {
	dir := t.dir(cgroup)
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil || st.Nlink == leafLinks {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	switch {
	case gone(err), errors.Is(err, fs.ErrPermission):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list cgroups: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
