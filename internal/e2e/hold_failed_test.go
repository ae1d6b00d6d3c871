package e2e

import (
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/pace"
	"headgate/pkg/scope"
)

// A start that fails after it has begun to hold in one namespace leaves there
// what it found, and takes away what it made.
func TestFailedStartWhileHolding(t *testing.T) {
	held := func(t *testing.T, h *lab.Host) bool {
		return strings.Contains(output(t, h, "nft", "list", "ruleset"), "headgate")
	}
	fail := func(t *testing.T, srv, cli *lab.Host) {
		t.Helper()
		ns, err := scope.OpenNetns(cli.NetNS)
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		other, err := pace.OpenHolder(pace.HolderOptions{Netns: ns, Queue: 8437, Mark: 1, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		cfg := configFor(srv, port, holding(1, 0))
		second := cfg.Rules[0]
		second.Name, second.Scope = "second", config.Scope{Netns: cli.NetNS}
		cfg.Rules = append(cfg.Rules, second)
		for i := range cfg.Rules {
			cfg.Rules[i].Hold.MaxWait = patience
		}
		a, err := agent.Start(cfg, "test", slog.New(slog.NewTextHandler(t.Output(), nil)))
		if err == nil {
			t.Errorf("it has started: %v", a.Remove())
		} else if !strings.Contains(err.Error(), "queue") {
			t.Errorf("it failed by something else: %v", err)
		}
		if held(t, cli) {
			t.Error("a rule is left where it failed")
		}
	}
	t.Run("after a predecessor", func(t *testing.T) {
		srv, cli, _ := hosts(t)
		keep(t, srv, "tcp", ":8080") // whose packets are timed
		first := begin(t, srv, holding(1, patience))
		if err := first.Stop(); err != nil {
			t.Fatal(err)
		}
		ours := pinnedMaps(t)
		fail(t, srv, cli)
		// Its lookup in the second namespace is gone again, too.
		if got := attachedPrograms(t, ours); !maps.Equal(got, wholeHold) {
			t.Errorf("attached: %v, want %v", got, wholeHold)
		}
		if !held(t, srv) {
			t.Error("the predecessor's rule is gone")
		}
		for range 2 { // what is called again does nothing
			if err := first.Stop(); err != nil {
				t.Error(err)
			}
			if err := first.Remove(); err != nil {
				t.Error(err)
			}
		}
		nothingHeldLeft(t, srv, ours)
	})
	t.Run("as the first", func(t *testing.T) {
		srv, cli, _ := hosts(t)
		before := programsNamed(t, "headgate_arrive")
		fail(t, srv, cli)
		if held(t, srv) {
			t.Error("a rule is left")
		}
		await(t, "no program is left", func() (any, bool) {
			now := programsNamed(t, "headgate_arrive")
			return now, len(now) <= len(before)
		})
	})
}

// programsNamed lists the programs in the kernel that begin with a name.
func programsNamed(t *testing.T, name string) (ids []ebpf.ProgramID) {
	t.Helper()
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if err != nil {
			return slices.Clip(ids)
		}
		id = next
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // gone meanwhile
		}
		info, err := p.Info()
		p.Close()
		if err == nil && strings.HasPrefix(name, info.Name) {
			ids = append(ids, id)
		}
	}
}
