// Package scope finds the places that rules name: network namespaces, the
// cgroup hierarchy, and the listeners in them.
package scope

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrNoNetns means that a network namespace does not exist.
var ErrNoNetns = errors.New("no such network namespace")

// netnsDir is where `ip netns` binds its names.
const netnsDir = "/run/netns"

// Netns is an open network namespace.
type Netns struct {
	file   *os.File
	cookie uint64
	own    bool // that of the process
}

// OpenNetns opens the namespace that name stands for: a name under /run/netns,
// an absolute path, or "" for the namespace of the process. The error wraps
// [ErrNoNetns] when there is none of that name.
func OpenNetns(name string) (*Netns, error) {
	path := netnsPath(name)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNoNetns, path)
	}
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	ns := &Netns{file: f, own: name == ""}
	err = ns.Do(func() error {
		ns.cookie, err = netnsCookie()
		return err
	})
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	return ns, nil
}

func netnsPath(name string) string {
	switch {
	case name == "":
		// Not of /proc/self: that is the main thread, which Do may have used up.
		return "/proc/thread-self/ns/net"
	case !filepath.IsAbs(name):
		return filepath.Join(netnsDir, name)
	}
	return name
}

// Exists says whether there is something of that name, as [OpenNetns] takes it.
func Exists(name string) bool {
	_, err := os.Stat(netnsPath(name))
	return err == nil
}

// IsOwn says whether a name stands for the namespace that this process is in.
func IsOwn(name string) bool {
	there, err := os.Stat(netnsPath(name))
	if err != nil {
		return false
	}
	here, err := os.Stat(netnsPath(""))
	return err == nil && os.SameFile(here, there)
}

// Is says whether a name stands for this very namespace.
func (ns *Netns) Is(name string) bool {
	if name == "" {
		return ns.own
	}
	there, err := os.Stat(netnsPath(name))
	if err != nil {
		return false
	}
	here, err := ns.file.Stat()
	return err == nil && os.SameFile(here, there)
}

// Inode returns the inode number of the namespace that a name stands for: no two
// that exist have the same.
func Inode(name string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(netnsPath(name), &st); err != nil {
		return 0, fmt.Errorf("network namespace %s: %w", netnsPath(name), err)
	}
	return st.Ino, nil
}

// Inode returns the inode number of the namespace.
func (ns *Netns) Inode() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(ns.Fd(), &st); err != nil {
		return 0, fmt.Errorf("network namespace: %w", err)
	}
	return st.Ino, nil
}

// Clone returns another handle of the namespace.
func (ns *Netns) Clone() (*Netns, error) {
	fd, err := unix.FcntlInt(uintptr(ns.Fd()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	return &Netns{file: os.NewFile(uintptr(fd), ns.file.Name()), cookie: ns.cookie, own: ns.own}, nil
}

// FindNetns opens the namespace with that cookie, if it is that of the process,
// has a name under /run/netns, or is that of any process that can be seen.
// [ErrNoNetns] when it is not.
func FindNetns(cookie uint64) (*Netns, error) {
	names := []string{""}
	entries, err := os.ReadDir(netnsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("find a network namespace: %w", err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	processes, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, fmt.Errorf("find a network namespace: %w", err)
	}
	seen := make(map[uint64]bool)
	for _, name := range append(names, processes...) {
		inode, err := Inode(name)
		if err != nil || seen[inode] {
			continue
		}
		seen[inode] = true
		ns, err := OpenNetns(name)
		if err != nil {
			continue // no namespace, or gone since
		}
		if ns.Cookie() == cookie {
			return ns, nil
		}
		if err := ns.Close(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: cookie %d", ErrNoNetns, cookie)
}

// Cookie identifies the namespace for as long as the host is up.
func (ns *Netns) Cookie() uint64 { return ns.cookie }

// Own says whether it is the namespace of the process: to enter it takes no right.
func (ns *Netns) Own() bool { return ns.own }

// Fd is valid until Close.
func (ns *Netns) Fd() int { return int(ns.file.Fd()) }

// Close closes the handle; the namespace lives on for as long as it is used.
func (ns *Netns) Close() error { return ns.file.Close() }

// Do runs f on a thread that is inside the namespace. Goroutines that f starts
// are not. To enter another namespace than that of the process takes
// CAP_SYS_ADMIN.
func (ns *Netns) Do(f func() error) error {
	if ns.own {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, so that no
		// other one is ever run in a namespace that it did not ask for.
		runtime.LockOSThread()
		err := unix.Setns(ns.Fd(), unix.CLONE_NEWNET)
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w: it takes CAP_SYS_ADMIN", err)
		}
		if err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("cookie of the namespace: %w", err)
	}
	return cookie, nil
}
