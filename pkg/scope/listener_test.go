package scope_test

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/scope"
)

// listenersOf returns the listeners of a host by their ports.
func listenersOf(t *testing.T, h *lab.Host) map[uint16][]scope.Listener {
	t.Helper()
	byPort := make(map[uint16][]scope.Listener)
	err := openNetns(t, h.NetNS).Do(func() error {
		all, err := scope.Listeners()
		for _, l := range all {
			byPort[l.Port] = append(byPort[l.Port], l)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return byPort
}

func TestListeners(t *testing.T) {
	srv := lab.ForTest(t, "srv", "cli").Host("srv")
	if got := listenersOf(t, srv); len(got) != 0 {
		t.Errorf("before any: %v", got)
	}
	sub, err := srv.SubCgroup("sub")
	if err != nil {
		t.Fatal(err)
	}
	ports := []uint16{81, 82, 83, 60000} // in both bytes of a port
	groups := []*lab.Cgroup{srv.Cgroup, sub, srv.Cgroup, sub}
	for i, listen := range [][]string{{"127.0.0.1:81"}, {"[::1]:82"}, {":83"}, {"127.0.0.1:60000", "[::1]:60000"}} {
		if _, err := srv.StartServerIn(t.Context(), groups[i], backend.Spec{Protocol: "line", Listen: listen}); err != nil {
			t.Fatal(err)
		}
	}
	// A connection is no listener. The server, which speaks first, has accepted it.
	c, err := srv.Dial(t.Context(), "tcp", "127.0.0.1:81")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	got := listenersOf(t, srv)
	if len(got) != len(ports) {
		t.Errorf("ports %v, want %v", got, ports)
	}
	for i, port := range ports {
		id, err := groups[i].ID()
		if err != nil {
			t.Fatal(err)
		}
		want := 1
		if port == 60000 {
			want = 2
		}
		if len(got[port]) != want {
			t.Errorf("port %d: %+v, want %d", port, got[port], want)
		}
		for _, l := range got[port] {
			if l.CgroupID != id || l.Backlog <= 0 || l.Queued != 0 || l.Dropped != 0 {
				t.Errorf("%+v; want cgroup %d and an empty queue", l, id)
			}
		}
	}
}

// listen is a listener of this process with a short queue, which nobody
// accepts from.
func listen(t *testing.T, h *lab.Host, port, backlog int) {
	t.Helper()
	fd := -1
	err := h.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err = unix.Bind(fd, &unix.SockaddrInet4{Port: port}); err != nil {
			return err
		}
		return unix.Listen(fd, backlog)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
}

func TestListenerQueue(t *testing.T) {
	const backlog = 4
	srv := lab.ForTest(t, "srv").Host("srv")
	listen(t, srv, 8080, backlog)
	one := func() scope.Listener {
		t.Helper()
		all := listenersOf(t, srv)[8080]
		if len(all) != 1 {
			t.Fatalf("%d listeners", len(all))
		}
		return all[0]
	}
	dial := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		c, err := srv.Dial(ctx, "tcp", "127.0.0.1:8080")
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return err
	}

	root, err := scope.Cgroup2()
	if err != nil {
		t.Fatal(err)
	}
	// This process may be anywhere, but its cgroup exists.
	if l := one(); l.Backlog != backlog || l.Queued != 0 || l.Dropped != 0 {
		t.Errorf("empty: %+v", l)
	} else if _, err := scope.CgroupPath(root, l.CgroupID); err != nil {
		t.Error(err)
	}
	for i := range backlog + 1 { // the kernel lets in one more than it says
		if err := dial(); err != nil {
			t.Fatal(err)
		}
		if l := one(); l.Queued != i+1 || l.Dropped != 0 {
			t.Errorf("%d connections: %+v", i+1, l)
		}
	}
	if err := dial(); err == nil {
		t.Error("one more than the queue holds was let in")
	}
	if l := one(); l.Queued != backlog+1 || l.Dropped == 0 {
		t.Errorf("overflowed: %+v", l)
	}
}
