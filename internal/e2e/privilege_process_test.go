package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
)

// The capabilities of an agent, as in /proc/PID/status.
const (
	threeRights = 1<<unix.CAP_BPF | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_PERFMON
	holdRights  = threeRights | 1<<unix.CAP_NET_RAW
	farRights   = holdRights | 1<<unix.CAP_SYS_ADMIN
)

// hasRights checks the capabilities of every thread of a process.
func hasRights(t *testing.T, pid int, want uint64) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("threads of %d: %v", pid, err)
	}
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		fields := make(map[string]string)
		for _, f := range regexp.MustCompile(`(?m)^(\w+):\t(.*)$`).FindAllStringSubmatch(string(text), -1) {
			fields[f[1]] = f[2]
		}
		for name, want := range map[string]uint64{"CapEff": want, "CapPrm": want, "CapInh": 0, "CapAmb": 0, "CapBnd": want} {
			if got, err := strconv.ParseUint(fields[name], 16, 64); err != nil || got != want {
				t.Errorf("%s: %s is %#x, %v; want %#x", file, name, got, err, want)
			}
		}
		if fields["NoNewPrivs"] != "1" {
			t.Errorf("%s: NoNewPrivs is %q", file, fields["NoNewPrivs"])
		}
	}
}

// An agent that root has started keeps what it needs, and that is enough for all
// that comes later.
func TestPrivileges(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli", "far")
	srv, cli, far := l.Host("srv"), l.Host("cli"), l.Host("far")
	program := buildAgent(t)
	k := keep(t, srv, "tcp", ":8080")
	rule := func(keys string) string {
		return "rules:\n  - {name: shop, port: 8080, limit: {algorithm: fixed, initial: 2}" + keys + "}\n"
	}
	c := runControlled(t, program, srv, rule(""))
	pid := c.cmd.Process.Pid
	hasRights(t, pid, threeRights)
	if info, err := os.Stat(stateDir()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the state directory: %v, %v", info.Mode(), err)
	}

	// To hold takes one more.
	const held = ", hold: {max_wait: 1m}"
	c.write(t, rule(held))
	c.fails(t, 1, "CAP_NET_RAW", "reload")
	c.write(t, rule(""))
	if code := c.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}

	// One that has it begins to hold once more, follows a device and times a
	// cgroup that come later.
	c = runControlled(t, program, srv, rule(held))
	pid = c.cmd.Process.Pid
	hasRights(t, pid, holdRights)
	for _, text := range []string{rule(""), rule(held)} {
		c.write(t, text)
		c.says(t, "in force", "reload")
	}
	output(t, srv, "ip", "link", "add", "later", "type", "veth", "peer", "name", "peer")
	c.write(t, rule(held)+"  - {name: later, port: 8081}\n")
	c.says(t, "in force", "reload")
	serveAt(t, srv, another, backend.Spec{Protocol: "http"})
	ours := pinnedMaps(t)
	await(t, "programs on lo, two devices and two new ones, and on two cgroups", func() (any, bool) {
		got := attachedPrograms(t, ours)
		return got, got["headgate_arrive"] == 5 && got["headgate_ingress"] == 2
	})
	crowd := newCrowd(t, cli, netip.AddrPortFrom(srv.Addr4, port), 5)
	awaitUnits(t, 2, 3)
	k.await(t, 2)
	k.close(1)
	awaitUnits(t, 2, 2)

	// To enter another namespace takes more, which is gone.
	c.write(t, rule("")+"  - {name: far, port: 8080, scope: {netns: "+far.NetNS+"}}\n")
	c.fails(t, 1, "CAP_SYS_ADMIN", "reload")
	awaitUnits(t, 2, 2)
	c.write(t, rule(""))
	c.says(t, "in force", "reload")
	crowd.close()
	k.closeAll()
	hasRights(t, pid, holdRights)
	if code := c.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	nothingLeft(t, ours)
	if rules := output(t, srv, "nft", "list", "ruleset"); strings.Contains(rules, "headgate") {
		t.Errorf("in the packet filter: %s", rules)
	}

	// Where a rule says so from the beginning, it stays.
	c = runControlled(t, program, srv, rule("")+"  - {name: far, port: 8080, scope: {netns: "+far.NetNS+"}, hold: {max_wait: 1m}}\n")
	hasRights(t, c.cmd.Process.Pid, farRights)
	ours = pinnedMaps(t)
	want := maps.Clone(whole)
	want["headgate_lookup"], want["headgate_arrive"] = 2, 2
	if got := attachedPrograms(t, ours); !maps.Equal(got, want) {
		t.Errorf("attached: %v, want %v", got, want)
	}
	c.write(t, rule(""))
	c.says(t, "in force", "reload")
	if code := c.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	nothingLeft(t, ours)
}
