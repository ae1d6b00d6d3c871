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

// MainBPF is Main with a BPF file system of the package's own, whose directory
// it puts into *dir; without root *dir stays empty. A TestMain that mounts one
// itself before it calls Main does so in every server process, too: they run
// the same program.
func MainBPF(m interface{ Run() int }, dir *string) int {
	if handled, code := ServerMain(os.Args[1:]); handled {
		return code
	}
	if os.Geteuid() != 0 {
		return Main(m)
	}
	mounted, unmount, err := MountBPF()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	*dir = mounted
	code := Main(m, mounted)
	if err := unmount(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}
