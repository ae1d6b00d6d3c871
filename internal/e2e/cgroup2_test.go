package e2e

import (
	"net/netip"
	"strings"
	"testing"

	"headgate/internal/lab"
	"headgate/pkg/loader"
	"headgate/pkg/scope"
)

// The cgroup2 hierarchy is found where it stands beside others, and counting
// works from there.
func TestFieldUnifiedCgroup(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	t.Cleanup(func() { _, _ = loader.Cleanup(stateDir()) })
	k := keep(t, srv, "tcp", ":8080")
	c, started := startChild(t, srv, childSpec{State: stateDir(), Limit: 1, Cgroup: cgroupUnified})
	if started.Error != "" {
		t.Fatal(started.Error)
	}
	to := netip.AddrPortFrom(srv.Addr4, port)
	dial(t, cli, to)
	k.await(t, 1)
	crowd := newCrowd(t, cli, to, 1)
	crowd.wait(t, patience)
	await(t, "1 admitted, 1 rejected", func() (any, bool) {
		st := c.target(t)
		return st, st.InFlight == 1 && st.AdmittedTotal == 1 && st.RejectedTotal.Limit == 1
	})
	if crowd.refused != 1 {
		t.Errorf("a client over the limit: %v", crowd)
	}
	c.kill(t)
}

// Without one the agent does not start, says what is missing, and leaves
// nothing.
func TestFieldNoCgroup(t *testing.T) {
	srv := lab.ForTest(t, "srv").Host("srv")
	c, started := startChild(t, srv, childSpec{State: stateDir(), Limit: 1, Cgroup: cgroupNone})
	if !strings.Contains(started.Error, scope.ErrNoCgroup2.Error()) || !strings.Contains(started.Error, "mount -t cgroup2") {
		t.Errorf("start without cgroup2: %q, want an error that says so", started.Error)
	}
	if err := c.cmd.Wait(); err == nil {
		t.Error("the agent process ended as if all was well")
	}
	if n, err := loader.Cleanup(stateDir()); n != 0 || err != nil {
		t.Errorf("the failed start left %d programs attached, %v", n, err)
	}
}
