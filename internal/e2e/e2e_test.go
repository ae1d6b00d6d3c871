// Package e2e holds the tests of the whole chain on a real kernel: network
// namespaces, real servers and clients, and an agent between them.
package e2e

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
)

// bpffs is where the agents of these tests keep their state, on a file system
// of its own.
var bpffs string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if handled, code := childMain(os.Args[1:]); handled {
		return code
	}
	if os.Geteuid() != 0 {
		return lab.Main(m)
	}
	dir, err := os.MkdirTemp("", lab.Prefix+"bpf-")
	if err != nil {
		panic(err)
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		panic(err)
	}
	bpffs = dir
	defer func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		_ = os.Remove(dir)
	}()
	return lab.Main(m, dir)
}
