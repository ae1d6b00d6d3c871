package main

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/pkg/loader"
)

// Of two agents that begin at once, the one that comes too late for the address names
// the other, which has no state directory yet.
func TestBesideOneThatBegins(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	time.AfterFunc(besideEvery, func() {
		if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
			t.Error(err)
		}
	})
	err = beside(dir.Name(), syscall.EADDRINUSE)
	if !errors.Is(err, loader.ErrInUse) || !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "pid") {
		t.Errorf("%v; want the agent and the address", err)
	}
}

func TestBesideNobody(t *testing.T) {
	for _, want := range []error{syscall.EADDRINUSE, syscall.EADDRNOTAVAIL} {
		if got := beside(t.TempDir(), want); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
}
