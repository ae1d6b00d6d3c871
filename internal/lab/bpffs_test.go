package lab

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

type runFunc func() int

func (f runFunc) Run() int { return f() }

func TestMainBPF(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip(ErrNotRoot)
	}
	var dir string
	code := MainBPF(runFunc(func() int {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.BPF_FS_MAGIC {
			t.Errorf("%q is no BPF file system: %v, type %x", dir, err, fs.Type)
		}
		return 0
	}), &dir)
	if code != 0 {
		t.Errorf("code %d of tests that leave nothing", code)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}

	code = MainBPF(runFunc(func() int { return 3 }), &dir)
	if code != 3 {
		t.Errorf("code %d, want that of the tests, 3", code)
	}
	code = MainBPF(runFunc(func() int {
		if err := os.Mkdir(filepath.Join(dir, "pins"), 0o700); err != nil {
			t.Error(err)
		}
		return 0
	}), &dir)
	if code != 1 {
		t.Errorf("code %d of tests that leave a directory of pins, want 1", code)
	}
}
