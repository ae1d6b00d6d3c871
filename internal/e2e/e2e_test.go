// Package e2e holds the tests of the whole chain on a real kernel: network
// namespaces, real servers and clients, and an agent between them.
package e2e

import (
	"os"
	"testing"

	"headgate/internal/lab"
)

// bpffs is where the agents of these tests keep their state, on a file system
// of its own.
var bpffs string

func TestMain(m *testing.M) {
	for _, main := range []func([]string) (bool, int){childMain, clientMain} {
		if handled, code := main(os.Args[1:]); handled {
			os.Exit(code)
		}
	}
	os.Exit(lab.MainBPF(m, &bpffs))
}
