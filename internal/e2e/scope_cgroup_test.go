package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/config"
	"headgate/pkg/status"
)

// cgroupRule protects a port of cgroups below that of a host.
func cgroupRule(t *testing.T, h *lab.Host, name, pattern string, port uint16) config.Rule {
	t.Helper()
	n := 2
	r := config.DefaultRule()
	r.Name, r.Ports, r.Mode = name, []uint16{port}, config.ModeEnforce
	r.Scope = config.Scope{Cgroup: below(t, h.Cgroup) + "/" + pattern}
	fixed(n)(&r)
	return r
}

// Containers have namespaces of their own; they come, are made anew, and go.
func TestCgroupsOfContainers(t *testing.T) {
	l := lab.ForTest(t, "srv", "one", "two")
	srv := l.Host("srv")
	// The agent's own is not in it: a rule is for cgroups anywhere.
	pattern := strings.TrimSuffix(below(t, srv.Cgroup), srv.Name) + "**/docker-*.scope"
	r := cgroupRule(t, srv, "containers", "x", port)
	r.Scope.Cgroup = pattern
	a := start(t, rules(r))
	awaitScopes(t, a)
	spec := backend.Spec{Protocol: "line", Listen: []string{":8080"}}
	scopeOf := func(name string) (string, *lab.Cgroup) {
		group := nestedCgroup(t, l.Host(name), "system.slice/docker-"+name+".scope")
		return "cgroup:" + below(t, group), group
	}
	one, groupOne := scopeOf("one")
	two, groupTwo := scopeOf("two")
	server, err := l.Host("one").StartServerIn(t.Context(), groupOne, spec)
	if err != nil {
		t.Fatal(err)
	}
	awaitScopes(t, a, one)
	quiet := spec
	quiet.Listen = []string{":9"} // not that port
	other, err := l.Host("two").StartServerIn(t.Context(), groupTwo, quiet)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(l.Host("one").Addr6, port)
	for range 2 {
		dial(t, srv, to)
	}
	if !knock(t, srv, to) {
		t.Error("admitted over the limit")
	}
	await(t, "two in flight", func() (any, bool) {
		st, _ := targetIn(a, one, port)
		return st, st.InFlight == 2
	})
	if n := len(a.Status().Targets); n != 1 {
		t.Errorf("%d targets, and only one listens", n)
	}
	// It listens now, from a process of a cgroup below.
	if _, err := l.Host("two").StartServerIn(t.Context(), nestedCgroup(t, l.Host("two"), "system.slice/docker-two.scope/init"), spec); err != nil {
		t.Fatal(err)
	}
	awaitScopes(t, a, one, two)
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	awaitScopes(t, a, two)
	if err := other.Stop(); err != nil {
		t.Fatal(err)
	}
	awaitScopes(t, a, two)
}

// A unit has the host's port for as long as it is the one that listens on it.
func TestCgroupOfTheHost(t *testing.T) {
	srv := lab.ForTest(t, "srv").Host("srv")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := netip.MustParseAddrPort(free.Addr().String())
	unit := nestedCgroup(t, srv, "system.slice/shop.service")
	nestedCgroup(t, srv, "system.slice/idle.service")
	rule := cgroupRule(t, srv, "unit", "system.slice/*.service", to.Port())
	a := start(t, rules(rule))
	awaitScopes(t, a) // somebody listens, but not the unit

	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	stop := serveHere(t, unit, to)
	name := "cgroup:" + below(t, unit)
	awaitScopes(t, a, name)
	setLimit(t, a, name+"/"+strconv.Itoa(int(to.Port())), 1)
	if c, err := net.Dial("tcp", to.String()); err != nil {
		t.Error(err)
	} else {
		defer c.Close()
	}
	if c, err := net.Dial("tcp", to.String()); err == nil {
		c.Close()
		t.Error("admitted over the limit")
	}
	if st := a.Status().Targets[0]; st.RejectedTotal != (status.Rejected{Limit: 1}) {
		await(t, "one is rejected", func() (any, bool) {
			st := a.Status().Targets[0]
			return st, st.RejectedTotal == (status.Rejected{Limit: 1})
		})
	}
	stop()
	awaitScopes(t, a)
	// Another one may have the port now, and is left alone.
	ln, err := net.Listen("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for range 3 {
		c, err := net.Dial("tcp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	awaitScopes(t, a)
}

// serveHere starts a server in this network namespace, in a cgroup.
func serveHere(t *testing.T, group *lab.Cgroup, at netip.AddrPort) (stop func()) {
	t.Helper()
	dir, err := os.Open(group.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	spec := fmt.Sprintf(`{"protocol":"line","listen":[%q]}`, at)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", lab.ServerVerb, spec)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() { in.Close(); _ = cmd.Wait() })
	t.Cleanup(stop)
	return stop
}

// A pod with hostNetwork has the port of the host that its server listens on.
func TestPodOfTheHost(t *testing.T) {
	srv := lab.ForTest(t, "srv").Host("srv")
	api := serveAPI(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := netip.MustParseAddrPort(free.Addr().String())
	pod := apiPod{UID: newUID(), Namespace: "kube-system", Name: "proxy", Labels: map[string]string{"app": "proxy"}}
	group := nestedCgroup(t, srv, containers["systemd, CRI-O"](pod.UID, "0"))
	api.put("ADDED", pod)
	r := podRule("proxy", "kube-system", "app=proxy", to.Port())
	fixed(1)(&r)
	a := start(t, rules(r))
	stop := serveHere(t, group, netip.MustParseAddrPort("127.0.0.1:0"))
	awaitScopes(t, a) // the pod is there, and the port is that of somebody else
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	stop()
	serveHere(t, group, to)
	awaitScopes(t, a, "pod:kube-system/proxy")
	c, err := net.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c, err := net.Dial("tcp", to.String()); err == nil {
		c.Close()
		t.Error("admitted over the limit")
	}
	// A rule for the host comes first.
	host := r
	host.Name, host.Scope, host.Force = "host", config.Scope{}, true
	reload(t, a, rules(r, host))
	await(t, "all are those of the host", func() (any, bool) {
		st := a.Status()
		return st.Targets, len(st.Targets) == 1 && st.Targets[0].Rule == "host" && st.Targets[0].InFlight == 1
	})
	awaitLeft(t, a, "pod:kube-system/proxy", "rule host protects the port already")
}
