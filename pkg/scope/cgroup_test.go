package scope_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/scope"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

func TestCgroup2(t *testing.T) {
	path, err := scope.Cgroup2()
	if errors.Is(err, scope.ErrNoCgroup2) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		t.Errorf("%s is of type %#x, %v", path, st.Type, err)
	}
}

func TestCgroupPath(t *testing.T) {
	l := lab.ForTest(t, "srv")
	root, err := scope.Cgroup2()
	if err != nil {
		t.Fatal(err)
	}
	sub, err := l.Host("srv").SubCgroup("a b")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*lab.Cgroup{{Path: root}, l.Host("srv").Cgroup, sub} {
		id, err := c.ID()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := scope.CgroupPath(root, id); got != c.Path || err != nil {
			t.Errorf("%s, %v; want %s", got, err, c.Path)
		}
	}

	id, err := sub.ID()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(sub.Path); err != nil {
		t.Fatal(err)
	}
	if got, err := scope.CgroupPath(root, id); !errors.Is(err, scope.ErrNoCgroup) {
		t.Errorf("a cgroup that is gone: %q, %v", got, err)
	}
	if got, err := scope.CgroupPath(filepath.Join(root, "no such hierarchy"), id); !errors.Is(err, scope.ErrNoCgroup) {
		t.Errorf("a hierarchy that is gone: %q, %v", got, err)
	}
}
