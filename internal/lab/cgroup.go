package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"headgate/pkg/scope"
)

// Cgroup is a directory of the cgroup2 hierarchy.
type Cgroup struct {
	Path string // absolute
}

// ID returns the cgroup's id as the kernel's programs see it.
func (c *Cgroup) ID() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(c.Path, &st); err != nil {
		return 0, fmt.Errorf("cgroup %s: %w", c.Path, err)
	}
	return st.Ino, nil
}

// cgroupRoot is the cgroup2 hierarchy's root.
func cgroupRoot() (*Cgroup, error) {
	path, err := scope.Cgroup2()
	if err != nil {
		return nil, err
	}
	return &Cgroup{Path: path}, nil
}

func (c *Cgroup) child(name string) (*Cgroup, error) {
	path := filepath.Join(c.Path, name)
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, fmt.Errorf("making a cgroup: %w", err)
	}
	return &Cgroup{Path: path}, nil
}

// kill ends every process in the cgroup and below it.
func (c *Cgroup) kill() error {
	err := os.WriteFile(filepath.Join(c.Path, "cgroup.kill"), []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // already removed
	}
	return err
}

// remove removes the cgroup and those below it, waiting up to five seconds
// for killed processes to leave it.
func (c *Cgroup) remove() error {
	entries, err := os.ReadDir(c.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := (&Cgroup{Path: filepath.Join(c.Path, e.Name())}).remove(); err != nil {
				return err
			}
		}
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		err := unix.Rmdir(c.Path)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		if err != unix.EBUSY || time.Now().After(deadline) {
			return fmt.Errorf("removing cgroup %s: %w", c.Path, err)
		}
	}
}
