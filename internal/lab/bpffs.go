package lab

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// MountBPF mounts a BPF file system on a new directory, so that what is pinned
// there meets nobody else's pins. unmount removes both.
func MountBPF() (dir string, unmount func() error, err error) {
	dir, err = os.MkdirTemp("", fmt.Sprintf("%s%d-bpf-", Prefix, os.Getpid()))
	if err != nil {
		return "", nil, err
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0700"); err != nil {
		return "", nil, errors.Join(fmt.Errorf("mount a BPF file system: %w", err), os.Remove(dir))
	}
	return dir, func() error {
		return errors.Join(unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir))
	}, nil
}
