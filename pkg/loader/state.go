package loader

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Errors that a caller can act on.
var (
	// ErrInUse means that another agent holds the state directory.
	ErrInUse = errors.New("another headgate agent is running")

	// ErrNotBPFFS means that the state directory is not on a BPF file system.
	ErrNotBPFFS = errors.New("not on a BPF file system (bpffs)")

	// ErrForeign means that others keep something in the state directory under a
	// name that we would use.
	ErrForeign = errors.New("not made by headgate")
)

// The layout of the state directory, on a bpffs:
//
//	headgate-state    a map that says that what follows is ours
//	live/maps/NAME    every map of the programs, and "layout"
//	live/links/NAME   what keeps each program attached
//	new-PID           a live directory in the making; renamed when complete
//	devices/...       what is attached to devices, kept by pkg/device. Filters
//	                  outlive their pins: these stay when live is made anew
//
// It is changed only by who holds the lock on it.
const (
	markName    = "headgate-state"
	liveName    = "live"
	mapsName    = "maps"
	linksName   = "links"
	devicesName = "devices"
	newPrefix   = "new-" // bpffs allows no dots
)

// stateDir is a locked state directory.
type stateDir struct {
	path string
	lock *os.File
}

// Who only asks whether there is an agent holds the lock for that moment, and who
// ends removes the directory: a start tries so often, and so long after each time.
const (
	lockTries = 5
	lockRetry = 20 * time.Millisecond
)

// openState makes the directory where it is missing and locks it. The lock
// ends with the process, however that ends.
func openState(path string) (*stateDir, error) {
	if err := CheckState(path); err != nil {
		return nil, err
	}
	for tries := 1; ; tries++ {
		s, err := lockState(path)
		if tries == lockTries || !errors.Is(err, ErrInUse) && !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
		time.Sleep(lockRetry)
	}
}

// lockState is one try of [openState]; fs.ErrNotExist when somebody removed the
// directory meanwhile.
func lockState(path string) (_ *stateDir, err error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, noState(path, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, noState(path, err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, inUse(f, path)
		}
		return nil, fmt.Errorf("lock state directory %s: %w", path, err)
	}
	var locked unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &locked); err != nil {
		return nil, noState(path, err)
	}
	if inodeOf(path) != locked.Ino {
		return nil, noState(path, fs.ErrNotExist)
	}
	return &stateDir{path: path, lock: f}, nil
}

// InUse is an error that wraps [ErrInUse] and names the agent that holds the state
// directory at path, if one does.
func InUse(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
		return inUse(f, path)
	}
	return nil
}

func inUse(f *os.File, path string) error {
	return fmt.Errorf("%w%s, with its state in %s; stop it first", ErrInUse, holder(f), path)
}

// CheckState says whether a state directory can be at path: whether its nearest
// parent that exists is on a bpffs, else it is an [ErrNotBPFFS]; and whether what
// is in it is ours to change and remove, else it is an [ErrForeign].
func CheckState(path string) error {
	for at := path; ; at = filepath.Dir(at) {
		var st unix.Statfs_t
		err := unix.Statfs(at, &st)
		if errors.Is(err, unix.ENOENT) && at != "/" {
			continue
		}
		if err != nil {
			return noState(path, err)
		}
		if st.Type != unix.BPF_FS_MAGIC {
			return fmt.Errorf("state directory %s: %w; mount one: mount -t bpf bpf /sys/fs/bpf", path, ErrNotBPFFS)
		}
		return checkOwner(path)
	}
}

// checkOwner refuses a directory that has no mark of ours and something under a
// name of ours. A BPF file system may be shared, and the directory its root.
func checkOwner(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return noState(path, err)
	}
	foreign := ""
	for _, e := range entries {
		switch name := e.Name(); {
		case name == markName:
			return nil
		case name == liveName || name == devicesName || isHalfMade(e):
			foreign = name
		}
	}
	if foreign != "" {
		return fmt.Errorf("state directory %s: what is called %s in it was %w; name another directory", path, foreign, ErrForeign)
	}
	return nil
}

// isHalfMade says whether an entry is a live directory in the making.
func isHalfMade(e fs.DirEntry) bool {
	pid, ours := strings.CutPrefix(e.Name(), newPrefix)
	_, err := strconv.Atoi(pid)
	return ours && err == nil && e.IsDir()
}

// noState says why there can be no state directory, and what to do about it.
func noState(path string, err error) error {
	err = fmt.Errorf("state directory %s: %w", path, err)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: run as root, or as a user who may write there", err)
	}
	return err
}

// holder says which process holds the lock on f, as far as /proc/locks tells.
func holder(f *os.File) string {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return ""
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return ""
	}
	defer locks.Close()
	inode := fmt.Sprintf(":%d", st.Ino)
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		// 1: FLOCK ADVISORY WRITE 4711 00:1a:42 0 EOF
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" || !strings.HasSuffix(fields[5], inode) {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil && pid > 0 {
			return fmt.Sprintf(" (pid %d)", pid)
		}
	}
	return ""
}

func (s *stateDir) close() error { return s.lock.Close() }

// mark says that the directory is ours, before anything else is in it.
func (s *stateDir) mark() error {
	path := filepath.Join(s.path, markName)
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "headgate_state", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("create map headgate_state: %w", err)
	}
	defer m.Close()
	if err := m.Pin(path); err != nil {
		return noState(path, err)
	}
	return nil
}

// unmark is the last thing: it takes the mark away, and the directory, unless
// something of ours, or of somebody else, is in it.
func (s *stateDir) unmark() error {
	if _, err := os.Lstat(s.devices()); err == nil {
		return nil
	}
	if err := os.Remove(filepath.Join(s.path, markName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("state directory: %w", err)
	}
	return removeEmpty(s.path)
}

func (s *stateDir) devices() string         { return DevicesDir(s.path) }
func (s *stateDir) live() string            { return filepath.Join(s.path, liveName) }
func (s *stateDir) maps() string            { return filepath.Join(s.live(), mapsName) }
func (s *stateDir) links() string           { return filepath.Join(s.live(), linksName) }
func (s *stateDir) link(name string) string { return filepath.Join(s.links(), name) }

// create makes a live directory whose maps are pinned by fill; it appears
// complete or not at all. In one that is there its maps are exchanged, and its
// links stay: their programs go on with the maps that they have, until others
// take their place.
func (s *stateDir) create(fill func(maps string) error) error {
	if err := s.removeLeftovers(); err != nil {
		return err
	}
	tmp := filepath.Join(s.path, newPrefix+strconv.Itoa(os.Getpid()))
	maps := filepath.Join(tmp, mapsName)
	for _, dir := range []string{tmp, maps, filepath.Join(tmp, linksName)} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("state directory: %w", err)
		}
	}
	if err := fill(maps); err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	err := os.Rename(tmp, s.live())
	if errors.Is(err, fs.ErrExist) {
		err = errors.Join(s.exchange(maps), os.RemoveAll(tmp))
	} else if err != nil {
		err = errors.Join(err, os.RemoveAll(tmp))
	}
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return nil
}

// exchange puts maps in place of the live ones, and these in its place.
func (s *stateDir) exchange(maps string) error {
	for _, dir := range []string{s.maps(), s.links()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return unix.Renameat2(unix.AT_FDCWD, maps, unix.AT_FDCWD, s.maps(), unix.RENAME_EXCHANGE)
}

// removeLeftovers removes what predecessors had in the making when they died.
func (s *stateDir) removeLeftovers() error {
	entries, err := os.ReadDir(s.path)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	for _, e := range entries {
		if isHalfMade(e) {
			if err := os.RemoveAll(filepath.Join(s.path, e.Name())); err != nil {
				return fmt.Errorf("state directory: %w", err)
			}
		}
	}
	return nil
}

// removeLive unpins everything. What nothing else holds is detached by that.
func (s *stateDir) removeLive() error {
	if err := os.RemoveAll(s.live()); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return nil
}

// remove removes what is ours, and the directory unless somebody else uses it
// too, or it is where the bpffs is mounted. What is on devices must have been
// detached.
func (s *stateDir) remove() error {
	if err := os.RemoveAll(s.devices()); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return s.abandon()
}

// abandon is remove, but keeps the notes of what is on devices while there are any.
func (s *stateDir) abandon() error {
	if err := errors.Join(s.removeLive(), s.removeLeftovers()); err != nil {
		return err
	}
	return errors.Join(removeEmpty(s.devices()), s.unmark())
}

// removeEmpty removes a directory unless something is in it, or mounted there.
func removeEmpty(dir string) error {
	err := os.Remove(dir)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EBUSY) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Cleanup detaches and unpins everything that headgate left under the state
// directory, with or without an agent having been shut down. It returns how
// many programs it detached. Each of before is called first, when no agent can
// begin, and says how many it detached itself. [ErrInUse] when an agent is
// running.
func Cleanup(path string, before ...func() (int, error)) (int, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	s, err := openState(path)
	if err != nil {
		return 0, err
	}
	defer s.close()
	n := 0
	for _, f := range before {
		m, err := f()
		n += m
		if err != nil {
			return n, err
		}
	}
	if entries, err := os.ReadDir(s.links()); err == nil {
		n += len(entries)
	}
	return n, s.remove()
}
