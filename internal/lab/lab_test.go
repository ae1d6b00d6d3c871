package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab/backend"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "lab-abandon" {
		abandon()
	}
	os.Exit(Main(m))
}

// abandon makes a lab with a process in it and dies without closing it.
func abandon() {
	l, err := New("srv", "cli")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	cmd := l.Host("srv").Command(context.Background(), "sleep", "600")
	if err := cmd.Start(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	self := func(pid int) bool { return pid == os.Getpid() }
	fmt.Println(cmd.Process.Pid, len(ours(nsDir, self)))
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
}

func TestHostsTalkAtOnce(t *testing.T) {
	l := ForTest(t, "srv", "cli", "far")
	for _, from := range []string{"srv", "cli", "far"} {
		for _, to := range []string{"srv", "cli", "far"} {
			for _, addr := range []netip.Addr{l.Host(to).Addr4, l.Host(to).Addr6} {
				ping(t, l.Host(from), l.Host(to), addr)
			}
		}
	}
	ping(t, l.Host("cli"), l.Host("cli"), netip.MustParseAddr("127.0.0.1"))
	ping(t, l.Host("cli"), l.Host("cli"), netip.MustParseAddr("::1"))
}

func ping(t *testing.T, from, to *Host, addr netip.Addr) {
	t.Helper()
	ln, err := to.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", ln.Addr().String())
	if err != nil {
		t.Fatalf("%s to %s: %v", from.Name, to.Name, err)
	}
	_ = conn.Close()
}

func TestAddedAddressIsUsableAtOnce(t *testing.T) {
	l := ForTest(t, "srv", "cli")
	cli := l.Host("cli")
	for _, a := range []string{"10.83.1.77/24", "fd83:1::77/64"} {
		prefix := netip.MustParsePrefix(a)
		if err := cli.AddAddr("srv", prefix); err != nil {
			t.Fatal(err)
		}
		ping(t, l.Host("srv"), cli, prefix.Addr())
	}
	err := cli.AddAddr("eth7", netip.MustParsePrefix("10.0.0.1/8"))
	if err == nil || !strings.Contains(err.Error(), "eth7") {
		t.Errorf("unknown link: error %v does not name it", err)
	}
}

func TestDoReturnsToTheNamespaceItCameFrom(t *testing.T) {
	l := ForTest(t, "srv", "cli")
	outside := threadNS(t)
	var srv, cli, again string
	err := l.Host("srv").Do(func() error {
		srv = threadNS(t)
		err := l.Host("cli").Do(func() error { cli = threadNS(t); return nil })
		again = threadNS(t)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if srv == outside || cli == outside || srv == cli || again != srv || threadNS(t) != outside {
		t.Errorf("outside %s, srv %s, cli inside srv %s, back in srv %s, outside again %s",
			outside, srv, cli, again, threadNS(t))
	}
}

func threadNS(t *testing.T) string {
	t.Helper()
	ns, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func TestCommandRunsInNamespaceAndCgroup(t *testing.T) {
	l := ForTest(t, "srv")
	srv := l.Host("srv")
	if err := srv.Sysctl("net.core.somaxconn", "123"); err != nil {
		t.Fatal(err)
	}
	sub, err := srv.SubCgroup("apart")
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range []*Cgroup{srv.Cgroup, sub} {
		cmd := srv.Command(t.Context(), "cat", "/proc/sys/net/core/somaxconn", "/proc/self/cgroup")
		cmd.Cgroup = group
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		root, err := cgroupRoot()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"123\n", "0::" + strings.TrimPrefix(group.Path, root.Path) + "\n"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("output %q lacks %q", out, want)
			}
		}
	}
	if err := srv.Command(t.Context(), "/nonexistent").Run(); err == nil {
		t.Error("a program that does not exist was started")
	}
}

// Close ends processes that nobody waits for, and what they started.
func TestCloseLeavesNothing(t *testing.T) {
	before := take(nil)
	l := ForTest(t, "srv", "cli")
	cmd := l.Host("srv").Command(t.Context(), "sh", "-c", "sleep 600 & sleep 600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if len(before.leaks(take(nil))) == 0 {
		t.Error("an open lab does not count as a leak")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if leaks := before.leaks(take(nil)); len(leaks) > 0 {
		t.Errorf("left after Close: %q", leaks)
	}
	if err := l.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if err := l.Host("srv").Do(func() error { return nil }); err == nil {
		t.Error("a closed host can be entered")
	}
}

func TestNewRefusesBadNames(t *testing.T) {
	NeedRoot(t)
	for _, names := range [][]string{{}, {""}, {"a", "a"}, {"A"}, {"a/b"}, {"../x"}, {"averylongname"}} {
		if l, err := New(names...); err == nil {
			t.Errorf("New(%q) made a lab", names)
			_ = l.Close()
		}
	}
}

func TestSweepRemovesWhatADeadProcessLeft(t *testing.T) {
	ForTest(t, "own") // root, and it must survive
	child := exec.Command("/proc/self/exe", "lab-abandon")
	out, err := child.CombinedOutput()
	var sleeper, namespaces int
	if _, scan := fmt.Sscan(string(out), &sleeper, &namespaces); scan != nil || err == nil {
		t.Fatalf("the abandoning process: %v: %s", err, out)
	}
	if namespaces != 2 {
		t.Errorf("it had %d namespaces, want 2", namespaces)
	}
	// Other test processes sweep too; each finds its work done or does it.
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	root, err := cgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	abandoned := func(pid int) bool { return pid == child.ProcessState.Pid() }
	if left := slices.Concat(ours(nsDir, abandoned), ours(root.Path, abandoned)); len(left) > 0 {
		t.Errorf("left after Sweep: %q", left)
	}
	if err := unix.Kill(sleeper, 0); err == nil && !zombie(sleeper) {
		t.Errorf("process %d of the dead lab still runs", sleeper)
	}
	self := func(pid int) bool { return pid == os.Getpid() }
	if len(ours(nsDir, self)) != 1 {
		t.Errorf("Sweep removed a namespace of a living process")
	}
}

func zombie(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "stat"))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestLeaksAreFound(t *testing.T) {
	dir := t.TempDir()
	before := take([]string{dir})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := os.WriteFile(filepath.Join(dir, "pin"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	leaks := strings.Join(before.leaks(take([]string{dir})), "\n")
	for _, want := range []string{"socket:[", "entry " + dir + "/pin"} {
		if !strings.Contains(leaks, want) {
			t.Errorf("leaks %q lack %q", leaks, want)
		}
	}
}

func TestServerInTheHostsCgroup(t *testing.T) {
	l := ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	server, err := srv.StartServer(t.Context(), backend.Spec{
		Protocol: "http", Listen: []string{":8080"}, Workers: 2, Service: 20 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	procs, err := os.ReadFile(filepath.Join(srv.Cgroup.Path, "cgroup.procs"))
	if err != nil || strings.TrimSpace(string(procs)) != fmt.Sprint(server.PID()) {
		t.Errorf("the cgroup holds %q (%v), want process %d", procs, err, server.PID())
	}
	transport := &http.Transport{DialContext: cli.Dial}
	defer transport.CloseIdleConnections()
	for _, addr := range []netip.Addr{srv.Addr4, srv.Addr6} {
		resp, err := (&http.Client{Transport: transport}).Get("http://" + netip.AddrPortFrom(addr, 8080).String() + "/")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != "ok\n" {
			t.Errorf("body %q, %v", body, err)
		}
	}
	stats, err := server.Stats()
	want := backend.Stats{MaxInside: 1, Served: 2, Conns: 2}
	if err != nil || stats != want {
		t.Errorf("stats %+v, %v; want %+v", stats, err, want)
	}
	if err := server.ResetPeak(); err != nil {
		t.Error(err)
	}

	_, err = srv.StartServer(t.Context(), backend.Spec{Protocol: "http", Listen: []string{":8080"}})
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("second server on the port: error %v does not say why", err)
	}
	if err := server.Stop(); err != nil {
		t.Error(err)
	}
}
