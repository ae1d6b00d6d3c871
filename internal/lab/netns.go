package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// nsDir is where iproute2 keeps named network namespaces.
const nsDir = "/run/netns"

// newNamedNS makes a network namespace with a name and returns its path and
// an open descriptor of it.
func newNamedNS(name string) (path string, fd int, err error) {
	if err := shareNSDir(); err != nil {
		return "", -1, err
	}
	path = filepath.Join(nsDir, name)
	mountPoint, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return "", -1, err
	}
	_ = mountPoint.Close()
	defer func() {
		if err != nil {
			err = errors.Join(err, removeNamedNS(path))
		}
	}()

	done := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and no other
		// goroutine ever runs in the new namespace.
		runtime.LockOSThread()
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("making a network namespace: %w", err)
			}
			if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("naming it %s: %w", path, err)
			}
			return nil
		}()
	}()
	if err := <-done; err != nil {
		return "", -1, err
	}
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", -1, fmt.Errorf("opening %s: %w", path, err)
	}
	return path, fd, nil
}

// shareNSDir makes nsDir a shared mount of its own, as the first `ip netns add`
// of a machine does. Left to that, it would cover the names made before it.
func shareNSDir() error {
	if err := os.MkdirAll(nsDir, 0o755); err != nil {
		return err
	}
	err := unix.Mount("", nsDir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if err == unix.EINVAL { // no mount point yet
		if err = unix.Mount(nsDir, nsDir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = unix.Mount("", nsDir, "none", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		return fmt.Errorf("sharing %s: %w", nsDir, err)
	}
	return nil
}

// removeNamedNS takes the name away; the namespace ends with its last user.
// It is no error when another process was faster.
func removeNamedNS(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("unmounting %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Sweep removes the namespaces, cgroups and files of labs whose process is gone, and
// kills what still runs in them. New calls it.
func Sweep() error {
	root, err := cgroupRoot()
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range ours(root.Path, stale) {
		c := &Cgroup{Path: dir}
		errs = append(errs, c.kill(), c.remove())
	}
	for _, path := range ours(nsDir, stale) {
		errs = append(errs, removeNamedNS(path))
	}
	for _, dir := range ours(os.TempDir(), stale) {
		errs = append(errs, removeOwnDir(dir))
	}
	return errors.Join(errs...)
}

// removeOwnDir removes a directory in the common temporary directory, where
// anybody may make one with our name, only when it belongs to this user.
func removeOwnDir(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil || int(st.Uid) != os.Geteuid() {
		return nil
	}
	_ = unix.Unmount(dir, unix.MNT_DETACH) // it may be of MountBPF
	return os.RemoveAll(dir)
}

// ours lists the entries of dir with a lab's name whose process id is one
// that match wants.
func ours(dir string, match func(pid int) bool) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // there is nothing of ours where there is no directory
	}
	var found []string
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), Prefix)
		if !ok {
			continue
		}
		id, _, ok := strings.Cut(rest, "-")
		if pid, err := strconv.Atoi(id); ok && err == nil && pid > 0 && match(pid) {
			found = append(found, filepath.Join(dir, e.Name()))
		}
	}
	return found
}

func stale(pid int) bool {
	return unix.Kill(pid, 0) == unix.ESRCH
}
