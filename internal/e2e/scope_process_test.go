package e2e

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
)

// An agent that has given up its rights finds and enters the namespaces that are
// made later, if a rule said at the start that it would have to.
func TestScopeRights(t *testing.T) {
	l := lab.ForTest(t, "srv", "far")
	srv, far := l.Host("srv"), l.Host("far")
	program := buildAgent(t)
	const named = "rules:\n  - {name: shop, port: 8080, limit: {algorithm: fixed, initial: 2}}\n"
	found := named + "  - {name: unit, port: 8081, limit: {algorithm: fixed, initial: 1}, scope: {cgroup: " +
		below(t, far.Cgroup) + "/system.slice/*.service}}\n"
	c := runControlled(t, program, srv, named)
	c.write(t, found)
	c.fails(t, 1, "CAP_SYS_PTRACE", "reload")
	if code := c.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}

	c = runControlled(t, program, srv, found)
	hasRights(t, c.cmd.Process.Pid, threeRights|1<<unix.CAP_SYS_ADMIN|1<<unix.CAP_SYS_PTRACE)
	group := nestedCgroup(t, far, "system.slice/far.service")
	if _, err := far.StartServerIn(t.Context(), group, backend.Spec{Protocol: "line", Listen: []string{":8081"}}); err != nil {
		t.Fatal(err)
	}
	await(t, "a unit is found", func() (any, bool) {
		got := c.status(t).Targets
		return got, len(got) == 2 && got[1].Scope == "cgroup:"+below(t, group)
	})
	to := netip.AddrPortFrom(far.Addr4, another)
	dial(t, srv, to)
	if !knock(t, srv, to) {
		t.Error("admitted over the limit")
	}
	if code := c.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if knock(t, srv, to) {
		t.Error("refused, and the agent is gone")
	}
}
