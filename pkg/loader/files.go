package loader

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// leastFiles is how many files an agent must be able to have open: a small one has
// some eighty, and who asks it has one each.
const leastFiles = 128

// enoughFiles says whether this process may have as many open as an agent needs. To
// run out of them while programs are loaded looks like a kernel that lacks something.
func enoughFiles() error {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return nil // a seccomp profile forbids to ask
	}
	if limit.Cur < leastFiles {
		return fmt.Errorf("this process may have %d files open, and an agent needs %d at least: raise the limit (ulimit -n, or LimitNOFILE= of a systemd unit)",
			limit.Cur, leastFiles)
	}
	return nil
}
