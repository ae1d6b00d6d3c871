package e2e

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/agent"
)

// wholeHold is what an agent that holds has attached: on two devices.
var wholeHold = func() map[string]int {
	m := maps.Clone(whole)
	m["headgate_arrive"] = 2
	return m
}()

// output runs a program on a host.
func output(t *testing.T, h *lab.Host, name string, args ...string) string {
	t.Helper()
	cmd := h.Command(t.Context(), name, args...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out.String())
	}
	return out.String()
}

// foreign puts a clsact with a filter, and a packet filter, of others on a
// host, and returns a function that checks that they are as they were.
func foreign(t *testing.T, h *lab.Host, link string) (unchanged func()) {
	t.Helper()
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "other", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer pass.Close()
	output(t, h, "tc", "qdisc", "add", "dev", link, "clsact")
	err = h.Do(func() error {
		dev, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		return netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: dev.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS,
				Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL,
			},
			Fd: pass.FD(), Name: "other", DirectAction: true,
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	output(t, h, "nft", `add table inet other; add chain inet other in { type filter hook prerouting priority -300; }; add rule inet other in accept comment "other"`)
	look := func() string {
		// Without TCX, ours is among the filters.
		var filters strings.Builder
		for line := range strings.Lines(output(t, h, "tc", "filter", "show", "dev", link, "ingress")) {
			if !strings.Contains(line, "headgate_ingress") {
				filters.WriteString(line)
			}
		}
		return output(t, h, "tc", "qdisc", "show", "dev", link) + filters.String() +
			output(t, h, "nft", "-s", "list", "table", "inet", "other")
	}
	before := look()
	if !strings.Contains(before, "clsact") || strings.Count(before, "other") < 3 {
		t.Fatalf("of others there is %s", before)
	}
	return func() {
		t.Helper()
		if after := look(); after != before {
			t.Errorf("of others there was\n%s\nand is now\n%s", before, after)
		}
	}
}

func nothingHeldLeft(t *testing.T, h *lab.Host, ours map[ebpf.MapID]bool) {
	t.Helper()
	nothingLeft(t, ours)
	if rules := output(t, h, "nft", "list", "ruleset"); strings.Contains(rules, "headgate") {
		t.Errorf("in the packet filter after the end: %s", rules)
	}
}

func testHoldCleanStop(t *testing.T, program string) {
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	unchanged := foreign(t, srv, "cli")
	p := runAgent(t, program, srv, holdRule)
	ours := pinnedMaps(t)
	if got := attachedPrograms(t, ours); !maps.Equal(got, wholeHold) {
		t.Errorf("attached: %v, want %v", got, wholeHold)
	}
	unchanged()
	if rules := output(t, srv, "nft", "list", "chain", "inet", "headgate", "hold"); !strings.Contains(rules, "waits in queue") {
		t.Errorf("in the packet filter: %s", rules)
	}
	c := newCrowd(t, cli, to, 20)
	awaitUnits(t, 10, 10)
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	// Who waits comes in when nobody holds any more.
	c.wait(t, slack)
	if len(c.connected) != 20 {
		t.Errorf("after the stop: %v", c)
	}
	nothingHeldLeft(t, srv, ours)
	unchanged()
	c.close()
	k.closeAll()
}

func testHoldCleanup(t *testing.T, program string) {
	const restarts = 3
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	unchanged := foreign(t, srv, "cli")
	var ours map[ebpf.MapID]bool
	for i := range restarts {
		p := runAgent(t, program, srv, holdRule)
		ours = pinnedMaps(t)
		if got := attachedPrograms(t, ours); !maps.Equal(got, wholeHold) {
			t.Errorf("start %d: attached %v, want %v", i, got, wholeHold)
		}
		dial(t, cli, to)
		awaitUnits(t, i+1, 0)
		p.signal(t, syscall.SIGKILL)
		_ = p.cmd.Wait()
	}
	n, err := agent.CleanUp(stateDir(), slog.New(slog.DiscardHandler))
	if all := len(wholeHold) + 1; err != nil || n != all { // one of them on two devices
		t.Errorf("the clean-up detached %d programs, %v; want %d", n, err, all)
	}
	nothingHeldLeft(t, srv, ours)
	unchanged()
	if _, err := os.Stat(stateDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state directory: %v", err)
	}
	k.closeAll()
}

// Devices that appear later are covered.
func TestHeldOnLaterDevices(t *testing.T) {
	srv, cli, _ := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	a := startHolding(t, srv, holding(1, 300*time.Millisecond))
	addr := later(t, srv, cli)
	to := netip.AddrPortFrom(addr, port)
	dial(t, cli, to)
	k.await(t, 1)
	c := newCrowd(t, cli, to, 5)
	c.wait(t, patience)
	if c.refused != 5 {
		t.Errorf("by a device that appeared later: %v; want all refused", c)
	}
	if st := target(a); st.HeldTotal != 5 {
		t.Errorf("want 5 held: %+v", st)
	}
	k.empty(t, a)
	empty(t, a)
}

// later joins two hosts by another veth pair and returns the server's address
// on it.
func later(t *testing.T, srv, cli *lab.Host) netip.Addr {
	t.Helper()
	output(t, srv, "ip", "link", "add", "late0", "type", "veth", "peer", "name", "late1", "netns", cli.NetNS)
	output(t, srv, "ip", "addr", "add", "10.85.0.1/24", "dev", "late0")
	output(t, cli, "ip", "addr", "add", "10.85.0.2/24", "dev", "late1")
	output(t, cli, "ip", "link", "set", "late1", "up")
	output(t, srv, "ip", "link", "set", "late0", "up")
	await(t, "the program is on it", func() (any, bool) {
		ours := attachedPrograms(t, pinnedMaps(t))
		return ours, ours["headgate_arrive"] == 3
	})
	return netip.MustParseAddr("10.85.0.1")
}
