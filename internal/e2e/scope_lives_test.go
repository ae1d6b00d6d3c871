package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/scope"
)

// The number of pods that live and end while an agent runs, and how many at once.
const (
	livesVariable = "HEADGATE_POD_LIVES"
	livesAtOnce   = 50
)

// life is a pod in a network namespace that goes with its process.
type life struct {
	pod    apiPod
	cmd    *exec.Cmd
	in     io.Closer
	group  *lab.Cgroup
	client net.Conn
}

// beginLife begins one.
func beginLife(t *testing.T, h *lab.Host, n int) *life {
	t.Helper()
	l := &life{pod: apiPod{UID: newUID(), Namespace: "shop", Name: fmt.Sprint("web-", n)}}
	l.group = nestedCgroup(t, h, containers["systemd, containerd"](l.pod.UID, "0123456789abcdef"))
	dir, err := os.Open(l.group.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	l.cmd = exec.CommandContext(t.Context(), "/proc/self/exe", lab.ServerVerb, `{"protocol":"line","listen":[":8080"]}`)
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line := make([]byte, 6); true {
		if _, err := io.ReadFull(out, line); err != nil || string(line) != "ready\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	return l
}

// visit connects to it, from within.
func (l *life) visit(t *testing.T) {
	t.Helper()
	ns, err := scope.OpenNetns(fmt.Sprintf("/proc/%d/ns/net", l.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	nl, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	lo, err := nl.LinkByName("lo")
	if err == nil {
		err = nl.LinkSetUp(lo)
	}
	if err == nil {
		err = ns.Do(func() (err error) {
			l.client, err = net.Dial("tcp", "127.0.0.1:8080")
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// end kills it with its connection open, and removes what a kubelet would.
func (l *life) end(t *testing.T) {
	t.Helper()
	_ = l.cmd.Process.Kill()
	l.in.Close()
	_ = l.cmd.Wait()
	l.client.Close()
	for dir := l.group.Path; strings.Contains(dir, "-pod"); dir = filepath.Dir(dir) {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	}
}

// holdings are what an agent has, in this process and in the kernel.
type holdings struct{ files, goroutines, links, targets, taken, heap, resident int }

func takeHoldings(t *testing.T) holdings {
	t.Helper()
	ports := openMap(t, "ports")
	defer ports.Close()
	h := holdings{goroutines: runtime.NumGoroutine(), files: openFiles(t)}
	for i := range ports.MaxEntries() {
		var place [2]uint64 // struct port of bpf/types.h: the key, 1 where one was, and the number
		if err := ports.Lookup(i, &place); err != nil {
			t.Fatal(err)
		}
		if place[0] > 1 {
			h.targets++
		} else if place[0] == 1 {
			h.taken++
		}
	}
	err := filepath.WalkDir(filepath.Join(stateDir(), "live", "links"), func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			h.links++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	h.heap = int(m.HeapAlloc)
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	h.resident, _ = strconv.Atoi(strings.Fields(string(text))[1])
	h.resident *= os.Getpagesize()
	return h
}

// liveAtOnce has pods begin at once, each with a network namespace, a listener and a
// connection that is open until the end, and end at once. It returns how long it
// took until all were protected, from when they were known and from when the first
// was protected, and until all were forgotten.
func liveAtOnce(t *testing.T, a *agent.Agent, h *lab.Host, api *apiserver, from, n int) (came, rest, went time.Duration) {
	t.Helper()
	var all []*life
	for i := range n {
		all = append(all, beginLife(t, h, from+i))
	}
	begun := time.Now()
	for _, l := range all { // until then nobody knows of them
		api.put("ADDED", l.pod)
	}
	var first time.Time
	awaitFor(t, 3*patience, fmt.Sprintf("%d targets", n), func() (any, bool) {
		st := a.Status()
		if len(st.Targets) > 0 && first.IsZero() {
			first = time.Now()
		}
		return len(st.Targets), len(st.Targets) == n
	})
	came, rest = time.Since(begun), time.Since(first)
	for _, l := range all {
		l.visit(t)
	}
	await(t, "each has one in flight", func() (any, bool) {
		ones := 0
		for _, st := range a.Status().Targets {
			if st.InFlight == 1 && st.AdmittedTotal == 1 {
				ones++
			}
		}
		return ones, ones == n
	})
	var ends sync.WaitGroup
	for _, l := range all {
		ends.Go(func() { l.end(t) })
		api.put("DELETED", l.pod)
	}
	ends.Wait()
	begun = time.Now()
	await(t, "no target", func() (any, bool) {
		st := a.Status()
		return len(st.Targets), len(st.Targets) == 0 && len(st.Unprotected) == 0
	})
	return came, rest, time.Since(begun)
}

// Where arrivals may wait each namespace takes a rule of the packet filter and a
// program on each device, too. What the windows do meanwhile takes nothing away
// of what is not in force yet.
func TestPodLivesHolding(t *testing.T) {
	h := lab.ForTest(t, "node").Host("node")
	api := serveAPI(t)
	r := podRule("web", "shop", "", port)
	holding(100, time.Minute)(&r)
	a := start(t, rules(r))
	awaitScopes(t, a)
	came, rest, went := liveAtOnce(t, a, h, api, 0, livesAtOnce)
	t.Logf("there after %v, %v after the first; gone after %v", came, rest, went)
	if most := lab.Allow(follows); rest > most || went > most {
		t.Errorf("%d at once: there %v after the first, gone after %v; want %v at most", livesAtOnce, rest, went, most)
	}
}

// Pods live and end, fifty at once, and nothing is left of them.
func TestPodLives(t *testing.T) {
	lives := 150
	if text := os.Getenv(livesVariable); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < livesAtOnce {
			t.Fatalf("%s=%s", livesVariable, text)
		}
		lives = n
	}
	h := lab.ForTest(t, "node").Host("node")
	api := serveAPI(t)
	a := start(t, rules(podRule("web", "shop", "", port)))
	awaitScopes(t, a)
	var slowest [2]time.Duration
	round := func(from, n int) {
		came, _, went := liveAtOnce(t, a, h, api, from, n)
		slowest[0], slowest[1] = max(slowest[0], came), max(slowest[1], went)
	}
	settled := func(before holdings) (after holdings, ok bool) {
		after = takeHoldings(t)
		return after, after.files <= before.files && after.goroutines <= before.goroutines &&
			after.links <= before.links && after.targets == 0 && after.taken == 0 && after.heap <= before.heap+1<<20
	}
	first := takeHoldings(t)
	round(0, livesAtOnce) // what is made at first use is there
	var before holdings
	await(t, fmt.Sprintf("nothing in the kernel but %+v", first), func() (any, bool) {
		before = takeHoldings(t)
		return before, before.targets == 0 && before.links == first.links && before.files <= first.files+5
	})
	for from := livesAtOnce; from < lives; from += livesAtOnce {
		round(from, min(livesAtOnce, lives-from))
	}
	await(t, fmt.Sprintf("as before %d lives: %+v", lives, before), func() (any, bool) { return settled(before) })
	after := takeHoldings(t)
	t.Logf("%d lives: there after %v at most, gone after %v; before %+v, after %+v", lives, slowest[0], slowest[1], before, after)
	if most := lab.Allow(follows); slowest[0] > most || slowest[1] > most {
		t.Errorf("%d at once: there after %v, gone after %v; want %v at most", livesAtOnce, slowest[0], slowest[1], most)
	}
	if reasons := a.NotReady(); len(reasons) > 0 {
		t.Errorf("not ready: %v", reasons)
	}
}
