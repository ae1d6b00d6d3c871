package scope_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"headgate/internal/lab"
	"headgate/pkg/scope"
)

func openNetns(t *testing.T, name string) *scope.Netns {
	t.Helper()
	ns, err := scope.OpenNetns(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

func TestOpenNetns(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	own := openNetns(t, "")
	byPath := openNetns(t, srv.NetNS)
	byName := openNetns(t, filepath.Base(srv.NetNS))
	other := openNetns(t, cli.NetNS)
	if byPath.Cookie() != byName.Cookie() {
		t.Errorf("one namespace, cookies %d and %d", byPath.Cookie(), byName.Cookie())
	}
	if own.Cookie() == 0 || own.Cookie() == byPath.Cookie() || byPath.Cookie() == other.Cookie() {
		t.Errorf("three namespaces, cookies %d, %d, %d", own.Cookie(), byPath.Cookie(), other.Cookie())
	}
}

func TestOpenNetnsErrors(t *testing.T) {
	lab.NeedRoot(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		missing bool
	}{
		{"no-such-namespace", true},
		{"/run/netns/no-such-namespace", true},
		{"/no/such/directory", true},
		{file, false},
		{"/proc/self/ns/mnt", false},
		{t.TempDir(), false},
	} {
		ns, err := scope.OpenNetns(tt.name)
		if err == nil {
			ns.Close()
			t.Errorf("%s: opened", tt.name)
		} else if errors.Is(err, scope.ErrNoNetns) != tt.missing {
			t.Errorf("%s: %v; ErrNoNetns: want %v", tt.name, err, tt.missing)
		}
	}
}

func TestNetnsDo(t *testing.T) {
	l := lab.ForTest(t, "srv")
	ns := openNetns(t, l.Host("srv").NetNS)
	var ln net.Listener
	err := ns.Do(func() (err error) {
		ln, err = net.Listen("tcp", "127.0.0.1:8080")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if !l.Host("srv").Listens(8080) {
		t.Error("what was done inside is not there")
	}
	here, err := scope.OpenNetns("")
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	if here.Cookie() == ns.Cookie() {
		t.Error("the caller came along")
	}

	failed := errors.New("failed")
	if err := ns.Do(func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("%v, want what the function said", err)
	}
	closed := openNetns(t, l.Host("srv").NetNS)
	closed.Close()
	if err := closed.Do(func() error { return nil }); err == nil {
		t.Error("a closed namespace can be entered")
	}
}

// A namespace without a name, such as that of a container, is found by its processes.
func TestFindNetnsOfProcess(t *testing.T) {
	lab.NeedRoot(t)
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(end)
	its, err := scope.OpenNetns(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	cookie := its.Cookie()
	if err := its.Close(); err != nil {
		t.Fatal(err)
	}
	found, err := scope.FindNetns(cookie)
	if err != nil {
		t.Fatal(err)
	}
	if err := found.Close(); err != nil || found.Cookie() != cookie {
		t.Errorf("found %d, want %d; %v", found.Cookie(), cookie, err)
	}
	end()
	if ns, err := scope.FindNetns(cookie); !errors.Is(err, scope.ErrNoNetns) {
		t.Errorf("a namespace that is gone: %v, %v", ns, err)
	}
}
