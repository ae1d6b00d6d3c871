package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/status"
)

// A running agent is told to protect something else.

// another is a port beside that of most tests.
const another = 8081

// rule is one for a port of a host.
func rule(h *lab.Host, name string, port uint16, set func(*config.Rule)) config.Rule {
	r := configFor(h, port, set).Rules[0]
	r.Name = name
	return r
}

// rules is a configuration with short windows.
func rules(all ...config.Rule) *config.Config {
	cfg := config.Default()
	cfg.State = stateDir()
	cfg.Window = 20 * time.Millisecond
	cfg.Lease = lease
	cfg.Rules = all
	return cfg
}

func reload(t *testing.T, a *agent.Agent, cfg *config.Config) {
	t.Helper()
	if err := a.Reload(func() (*config.Config, error) { return cfg, nil }); err != nil {
		t.Fatalf("reload: %v", err)
	}
}

// targetOf is what the agent reports of a rule with one port.
func targetOf(t *testing.T, a *agent.Agent, rule string) status.Target {
	t.Helper()
	for _, st := range a.Status().Targets {
		if st.Rule == rule {
			return st
		}
	}
	t.Fatalf("no target of rule %s in %+v", rule, a.Status().Targets)
	return status.Target{}
}

func awaitTarget(t *testing.T, a *agent.Agent, rule, what string, ok func(status.Target) bool) {
	t.Helper()
	await(t, rule+": "+what, func() (any, bool) {
		st := targetOf(t, a, rule)
		return st, ok(st)
	})
}

func TestReload(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli", "more")
	srv, cli, more := l.Host("srv"), l.Host("cli"), l.Host("more")
	one, two := keep(t, srv, "tcp", ":8080"), keep(t, srv, "tcp", ":8081")
	there := keep(t, more, "tcp", ":8080")
	to, toTwo := netip.AddrPortFrom(srv.Addr4, port), netip.AddrPortFrom(srv.Addr6, another)
	fill := func(to netip.AddrPort, k *keeper, n int) {
		t.Helper()
		for range n {
			dial(t, cli, to)
		}
		k.await(t, n)
	}

	shop := rule(srv, "shop", port, fixed(5))
	a := start(t, rules(shop))
	fill(to, one, 3)
	fill(toTwo, two, 4) // a port that nobody protects yet
	fill(netip.AddrPortFrom(more.Addr4, port), there, 2)
	ours := pinnedMaps(t)

	// A port and a namespace more, with all who are there already.
	extra := rule(srv, "extra", another, fixed(5))
	far := rule(more, "far", port, fixed(2))
	reload(t, a, rules(far, extra, shop))
	for name, want := range map[string]int{"shop": 3, "extra": 4, "far": 2} {
		awaitTarget(t, a, name, "all are counted", func(st status.Target) bool {
			return st.InFlight == want && st.AdmittedTotal == uint64(want)
		})
		if ago := targetOf(t, a, name).Recount.SecondsAgo; ago < 0 || ago > patience.Seconds() {
			t.Errorf("%s was counted %v seconds ago", name, ago)
		}
	}
	if got := a.Status().Targets[0].Rule; got != "far" {
		t.Errorf("the first target is %s, not that of the first rule", got)
	}
	wider := maps.Clone(whole)
	wider["headgate_lookup"] = 2
	// The listeners are in cgroups of their own or not: what times them is no matter here.
	attached := func() map[string]int {
		got := attachedPrograms(t, ours)
		got["headgate_ingress"], got["headgate_egress"] = 1, 1
		return got
	}
	if got := attached(); !maps.Equal(got, wider) {
		t.Errorf("attached: %v, want %v", got, wider)
	}
	dial(t, cli, toTwo)
	two.await(t, 5)
	for _, full := range []netip.AddrPort{toTwo, netip.AddrPortFrom(more.Addr6, port)} {
		if !knock(t, cli, full) {
			t.Errorf("admitted to %v over its limit", full)
		}
	}

	// Another limit for one that is there: its counts go on.
	shop = rule(srv, "shop", port, fixed(3))
	reload(t, a, rules(far, extra, shop))
	if st := targetOf(t, a, "shop"); st.Limit != 3 || st.InFlight != 3 || st.AdmittedTotal != 3 {
		t.Errorf("after its limit was lowered: %+v", st)
	}
	if !knock(t, cli, to) {
		t.Error("admitted over the limit of a reload")
	}

	// A port and a namespace less: the gates are open, and nothing is left there.
	reload(t, a, rules(shop))
	if n := len(a.Status().Targets); n != 1 {
		t.Errorf("%d targets are reported", n)
	}
	for range 7 {
		dial(t, cli, toTwo)
	}
	two.await(t, 5+7)
	if got := attached(); !maps.Equal(got, whole) {
		t.Errorf("attached: %v, want %v", got, whole)
	}

	// And back: of those who came meanwhile all are counted where the count went
	// on, and are where it did not.
	reload(t, a, rules(shop, extra))
	if st := targetOf(t, a, "extra"); st.InFlight != 5+7 {
		t.Errorf("12 connections are there: %+v", st)
	}
	two.close(11)
	awaitTarget(t, a, "extra", "one is left", func(st status.Target) bool { return st.InFlight == 1 })

	// A rule under another name is the same target.
	shop.Name = "store"
	reload(t, a, rules(shop, extra))
	if st := targetOf(t, a, "store"); st.InFlight != 3 || st.AdmittedTotal != 3 {
		t.Errorf("under another name: %+v", st)
	}
	one.empty(t, a)
	two.closeAll()
	awaitTarget(t, a, "extra", "empty", func(st status.Target) bool { return st.InFlight == 0 })
}

// Whatever is wrong, what was in force stays so.
func TestReloadFails(t *testing.T) {
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	shop := rule(srv, "shop", port, fixed(1))
	a := start(t, rules(shop))
	dial(t, cli, to)
	awaitInFlight(t, a, 1)
	broken := errors.New("broken")
	for name, load := range map[string]func() (*config.Config, error){
		"a broken file": func() (*config.Config, error) { return nil, broken },
		"another address": func() (*config.Config, error) {
			cfg := rules(rule(srv, "shop", port, fixed(100)))
			cfg.Listen = "127.0.0.1:1"
			return cfg, nil
		},
		"a namespace that is not there": func() (*config.Config, error) {
			return rules(rule(srv, "shop", port, fixed(100)), rule(&lab.Host{NetNS: "no-such-namespace"}, "far", port, fixed(1))), nil
		},
		"one namespace by two names": func() (*config.Config, error) {
			return rules(shop, rule(&lab.Host{NetNS: filepath.Join("/run/netns/../netns", filepath.Base(srv.NetNS))}, "same", port, fixed(100))), nil
		},
		"more targets than there is room for": func() (*config.Config, error) {
			all := []config.Rule{rule(srv, "shop", port, fixed(100))}
			for i := range 64 {
				all = append(all, rule(srv, fmt.Sprint("r", i), uint16(10000+i), fixed(1)))
			}
			return rules(all...), nil
		},
	} {
		if err := a.Reload(load); err == nil {
			t.Errorf("%s: reloaded", name)
		}
		if !a.Snapshot().ReloadFailed {
			t.Errorf("%s: not reported", name)
		}
		if st := targetOf(t, a, "shop"); len(a.Status().Targets) != 1 || st.Limit != 1 || st.InFlight != 1 {
			t.Errorf("%s: %+v", name, a.Status().Targets)
		}
		if !knock(t, cli, to) {
			t.Errorf("%s: admitted over the limit that was in force", name)
		}
	}
	reload(t, a, rules(rule(srv, "shop", port, fixed(2))))
	if a.Snapshot().ReloadFailed {
		t.Error("a reload that succeeded is reported to have failed")
	}
	if knock(t, cli, to) {
		t.Error("refused under the limit of the reload")
	}
	k.empty(t, a)
}

// What was learned stays, unless the rule computes something else.
func TestReloadKeepsWhatWasLearned(t *testing.T) {
	srv, cli, to := hosts(t)
	serve(t, srv, backend.Spec{Protocol: "http", Service: 5 * time.Millisecond})
	adaptive := func(most int, mode config.Mode) *config.Config {
		return rules(rule(srv, "shop", port, func(r *config.Rule) {
			r.Limit.Algorithm = "guarded"
			r.Limit.Params.Max = &most
			r.Mode = mode
		}))
	}
	a := start(t, adaptive(100, config.ModeEnforce))
	c := dial(t, cli, to)
	await(t, "a baseline", func() (any, bool) {
		get(t, c)
		return target(a), target(a).BaselineSeconds > 0
	})
	was := target(a)
	reload(t, a, adaptive(100, config.ModeObserve))
	if st := target(a); st.BaselineSeconds != was.BaselineSeconds || st.Mode != "observe" {
		t.Errorf("before: %+v\nafter its mode was changed: %+v", was, st)
	}
	reload(t, a, adaptive(3, config.ModeEnforce))
	if st := target(a); st.BaselineSeconds != was.BaselineSeconds || st.Limit > 3 {
		t.Errorf("before: %+v\nafter its max was changed: %+v", was, st)
	}
	reload(t, a, rules(rule(srv, "shop", port, fixed(7))))
	if st := target(a); st.BaselineSeconds != 0 || st.Limit != 7 || st.AdmittedTotal < was.AdmittedTotal {
		t.Errorf("under another algorithm: %+v", st)
	}
}

// The ways in which arrivals wait come and go under those who wait.
func TestReloadHolding(t *testing.T) {
	const clients = 20
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	bare := rules(rule(srv, "shop", port, fixed(2)))
	holds := rules(rule(srv, "shop", port, holding(2, time.Minute)))
	a := start(t, bare)
	dial(t, cli, to)
	dial(t, cli, to)
	k.await(t, 2)
	if !knock(t, cli, to) {
		t.Fatal("admitted over the limit")
	}

	for range 2 {
		reload(t, a, holds)
		c := newCrowd(t, cli, to, clients)
		awaitUnits(t, 2, clients)
		k.close(1)
		awaitUnits(t, 2, clients-1)
		// Who waits meets the rules that hold now.
		reload(t, a, bare)
		awaitUnits(t, 2, 0)
		c.wait(t, 2*slack)
		if len(c.connected) != 1 || c.refused != clients-1 {
			t.Errorf("%v; want 1 connected, the others refused", c)
		}
		if got := output(t, srv, "nft", "list", "ruleset"); strings.Contains(got, "headgate") {
			t.Errorf("in the packet filter where nothing is held: %s", got)
		}
		c.close()
		k.await(t, 2)
	}

	// A limit that rises lets in who waits, and so does a target that goes.
	reload(t, a, holds)
	c := newCrowd(t, cli, to, clients)
	awaitUnits(t, 2, clients)
	reload(t, a, rules(rule(srv, "shop", port, holding(clients, time.Minute))))
	awaitUnits(t, clients, 2)
	reload(t, a, rules(rule(srv, "other", another, fixed(1))))
	c.wait(t, 2*slack)
	if len(c.connected) != clients {
		t.Errorf("%v; want all connected", c)
	}
	k.await(t, clients+2)
	reload(t, a, holds)
	if st := target(a); st.InFlight != clients+2 || st.Waiting != 0 {
		t.Errorf("%d are connected: %+v", clients+2, st)
	}
	c.close()
	k.empty(t, a)
	empty(t, a)
}

// What is counted changes under those who are counted.
func TestReloadUnit(t *testing.T) {
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	connections := rules(rule(srv, "shop", port, fixed(10)))
	requests := rules(rule(srv, "shop", port, func(r *config.Rule) {
		holding(1, time.Minute)(r)
		r.Unit = config.UnitRequest
	}))
	a := start(t, connections)
	var conns []interface{ Write([]byte) (int, error) }
	for range 3 {
		conns = append(conns, dial(t, cli, to))
	}
	k.await(t, 3)
	for range 2 {
		reload(t, a, requests)
		awaitTarget(t, a, "shop", "3 connections that ask nothing", func(st status.Target) bool {
			return st.InFlight == 0 && st.Connections == 3 && st.Unit == "request"
		})
		for _, c := range conns {
			if _, err := c.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
				t.Fatal(err)
			}
		}
		awaitUnits(t, 1, 2)
		reload(t, a, connections)
		awaitTarget(t, a, "shop", "3 connections", func(st status.Target) bool { return st.InFlight == 3 && st.Waiting == 0 })
	}
	// What began meanwhile may be counted by the former unit: the next recount looks
	// at all of them, and only that one.
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		t.Fatal(err)
	}
	defer stats.Close()
	for i, walks := range []bool{true, false} {
		before := runsOf(t, "headgate_adopt")
		if err := a.Recount(); err != nil {
			t.Fatal(err)
		}
		if n := runsOf(t, "headgate_adopt") - before; (n > 0) != walks {
			t.Errorf("recount %d after a change of unit has looked at %d sockets of the kernel", i+1, n)
		}
	}
	k.empty(t, a)
	empty(t, a)
}

// runsOf is how often the programs of a name have run while statistics were on.
func runsOf(t *testing.T, name string) (runs uint64) {
	t.Helper()
	for id := ebpf.ProgramID(0); ; {
		var err error
		if id, err = ebpf.ProgramGetNextID(id); errors.Is(err, os.ErrNotExist) {
			return runs
		} else if err != nil {
			t.Fatal(err)
		}
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it has gone
		}
		info, err := p.Info()
		stats, failed := p.Stats()
		p.Close()
		if err := errors.Join(err, failed); err != nil {
			t.Fatal(err)
		}
		if info.Name == name {
			runs += stats.RunCount
		}
	}
}

// A name may come to stand for another namespace, as when one is deleted and made
// anew, or for none.
func TestNamespaceIsFollowed(t *testing.T) {
	l := lab.ForTest(t, "one", "two", "cli")
	name := filepath.Join(t.TempDir(), "ns")
	lead := func(h *lab.Host) {
		t.Helper()
		if err := os.Symlink(h.NetNS, name+"-next"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+"-next", name); err != nil {
			t.Fatal(err)
		}
	}
	one, two, cli := l.Host("one"), l.Host("two"), l.Host("cli")
	keep(t, one, "tcp", ":8080")
	keep(t, two, "tcp", ":8080")
	toOne, toTwo := netip.AddrPortFrom(one.Addr4, port), netip.AddrPortFrom(two.Addr4, port)
	lead(one)
	a := start(t, rules(rule(&lab.Host{NetNS: name}, "shop", port, fixed(0))))
	if !knock(t, cli, toOne) || knock(t, cli, toTwo) {
		t.Fatal("refused in the other namespace, or admitted in this one")
	}
	lead(two)
	await(t, "the other one is protected", func() (any, bool) { return a.Status().Targets, knock(t, cli, toTwo) })
	if knock(t, cli, toOne) {
		t.Error("refused where the name does not lead any more")
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	await(t, "it is said to be gone", func() (any, bool) {
		reasons := a.NotReady()
		return reasons, slices.ContainsFunc(reasons, func(s string) bool { return strings.Contains(s, name+" is gone") })
	})
	if knock(t, cli, toTwo) {
		t.Error("refused where no name leads any more")
	}
	// Meanwhile everything else can be reloaded.
	reload(t, a, rules(rule(&lab.Host{NetNS: name}, "shop", port, fixed(0)), rule(one, "one", another, fixed(1))))
	lead(one)
	await(t, "it is protected again", func() (any, bool) { return a.NotReady(), knock(t, cli, toOne) })
	if reasons := a.NotReady(); len(reasons) > 0 {
		t.Errorf("not ready: %v", reasons)
	}
}
