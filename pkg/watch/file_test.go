package watch

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// follow watches a file until the test ends.
func follow(t *testing.T, name string) <-chan struct{} {
	t.Helper()
	changes := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- File(ctx, name, Sum(name), slog.New(slog.NewTextHandler(t.Output(), nil)), func() { changes <- struct{}{} })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	time.Sleep(50 * time.Millisecond) // it watches, or looks first: either will do
	return changes
}

// once expects that a change is told, one time.
func once(t *testing.T, what string, changes <-chan struct{}) {
	t.Helper()
	select {
	case <-changes:
	case <-time.After(recheck - time.Second):
		t.Fatalf("%s: not told, or not before it was looked for anyway", what)
	}
	never(t, what+", again", changes)
}

func never(t *testing.T, what string, changes <-chan struct{}) {
	t.Helper()
	select {
	case <-changes:
		t.Fatalf("%s: told", what)
	case <-time.After(2 * quiet):
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, to, name string) {
	t.Helper()
	if err := os.Symlink(to, name); err != nil {
		t.Fatal(err)
	}
}

func TestWritten(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "headgate.yaml")
	write(t, name, "a")
	changes := follow(t, name)
	write(t, name, "b")
	once(t, "written in place", changes)
	write(t, filepath.Join(dir, "new"), "c")
	rename(t, filepath.Join(dir, "new"), name)
	once(t, "replaced", changes)
	write(t, name, "c")
	write(t, filepath.Join(dir, "other"), "x")
	never(t, "the same again, and another file", changes)
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	once(t, "removed", changes)
	write(t, name, "c")
	once(t, "there again", changes)
	for range 20 {
		write(t, name, "d")
		write(t, name, "")
		time.Sleep(quiet / 10)
	}
	write(t, name, "e")
	once(t, "written in many steps", changes)
}

// Kubernetes makes a directory for each version and swaps a link to it:
// headgate.yaml -> ..data/headgate.yaml, ..data -> ..2026_11_30
func TestLinkIsSwapped(t *testing.T) {
	dir := t.TempDir()
	version := func(name, text string) {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "headgate.yaml"), text)
		link(t, name, filepath.Join(dir, "..data_tmp"))
		rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
	}
	version("..1", "a")
	name := filepath.Join(dir, "headgate.yaml")
	link(t, "..data/headgate.yaml", name)
	changes := follow(t, name)
	for _, v := range []string{"..2", "..3", "..4"} {
		version(v, "version "+v)
		once(t, "swapped", changes)
	}
	version("..5", "version ..4")
	never(t, "swapped for the same", changes)
}

// The name is a link into a directory of somebody else.
func TestLinkedFileIsWritten(t *testing.T) {
	here, there := t.TempDir(), t.TempDir()
	name, real := filepath.Join(here, "headgate.yaml"), filepath.Join(there, "headgate.yaml")
	write(t, real, "a")
	link(t, real, name)
	changes := follow(t, name)
	write(t, real, "b")
	once(t, "written where the link leads", changes)
	write(t, filepath.Join(there, "next"), "c")
	link(t, filepath.Join(there, "next"), filepath.Join(here, "tmp"))
	rename(t, filepath.Join(here, "tmp"), name)
	once(t, "the link leads elsewhere", changes)
	write(t, real, "d")
	never(t, "written where it led", changes)
}

// What happened between the reading and the beginning is told.
func TestChangedBefore(t *testing.T) {
	name := filepath.Join(t.TempDir(), "headgate.yaml")
	write(t, name, "a")
	was := Sum(name)
	write(t, name, "b")
	changes := make(chan struct{}, 10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- File(ctx, name, was, slog.New(slog.DiscardHandler), func() { changes <- struct{}{} })
	}()
	once(t, "changed before", changes)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A pipe says what it has to say once, and not to us.
func TestPipe(t *testing.T) {
	name := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan Content, 1)
	go func() { ended <- Sum(name) }()
	select {
	case <-ended:
	case <-time.After(recheck):
		t.Fatal("waits for somebody to write to a pipe")
	}
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("a"); err != nil {
		t.Fatal(err)
	}
	Sum(name)
	if err := f.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(make([]byte, 1)); err != nil {
		t.Errorf("what is in a pipe is taken out: %v", err)
	}
}
