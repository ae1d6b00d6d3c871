// Package recipes tests what docs/recipes.md says: the examples for well-known
// servers, in front of the real servers, under more than these carry.
package recipes

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/load"
	"headgate/pkg/agent"
	"headgate/pkg/config"
)

// bpffs is where the agents of these tests keep their state.
var bpffs string

func TestMain(m *testing.M) { os.Exit(lab.MainBPF(m, &bpffs)) }

// recipe is an example with the server that it is for.
type recipe struct {
	example string // its file; the only rule has one port

	// start starts the server on the port of the rule. inside returns how many
	// requests the server had at once since the last call; nil where it does not
	// count them.
	start func(*testing.T, *lab.Host, int) (inside func() int)

	login  []load.Turn // begins a connection
	ask    load.Turn   // is a request
	health load.Turn   // is what a health check asks
	pool   int         // connections that the clients keep, at most; 0: one for each request

	capacity float64 // requests a second that the server carries, by how it is set up
	bounds
}

// bounds are what a recipe promises under an overload.
type bounds struct {
	p99     float64 // of what is answered, in times of one request alone
	goodput float64 // as a part of the capacity
	refusal float64 // the median time of a refusal, in times of one request alone
}

const (
	times    = 3 // the capacity
	patience = 400 * time.Millisecond
	lead     = 600 * time.Millisecond // of an overload: not looked at
	looked   = 1000 * time.Millisecond
	rounds   = 3 // until a busy machine is no excuse
)

// TestRecipes has each server overloaded, with its recipe and then without.
func TestRecipes(t *testing.T) {
	for _, r := range recipes {
		t.Run(r.example, func(t *testing.T) {
			for round := 1; ; round++ {
				var wrong []string
				ok := t.Run(fmt.Sprint("round ", round), func(t *testing.T) { wrong = r.run(t) })
				if !ok || len(wrong) == 0 {
					return
				}
				for _, w := range wrong {
					t.Log(w)
				}
				if round == rounds {
					t.Fatalf("not as promised in %d rounds", rounds)
				}
			}
		})
	}
}

// TestDocument compares the recipes in the document with the files.
func TestDocument(t *testing.T) {
	doc, err := os.ReadFile("../../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range append(slices.Clone(recipes), pooled) {
		text, err := os.ReadFile(filepath.Join("../../examples", r.example))
		if err != nil {
			t.Fatal(err)
		}
		_, rules, _ := strings.Cut(string(text), "\nrules:\n")
		if !strings.Contains(string(doc), "```yaml\nrules:\n"+rules+"```\n") {
			t.Errorf("%s is not in the document as it is", r.example)
		}
	}
}

// run returns what is not as promised and may be so on a busy machine.
func (r recipe) run(t *testing.T) (wrong []string) {
	cfg, s := r.site(t)
	alone := s.alone(t)
	bound := 10 * alone

	a, remove := startAgent(t, cfg)
	calm := s.offer(t, 0.5, 400*time.Millisecond, 0, bound)
	if s.inside != nil {
		s.inside()
	}
	gated := s.offer(t, times, looked, lead, bound)
	st := a.Status().Targets[0]
	remove()
	open := s.offer(t, times, looked/2, lead/2, bound)

	t.Logf("one alone %v, the server carries %.0f/s; at half of that %d of %d refused", alone, r.capacity, calm.Refused+calm.Reset, calm.Arrived)
	t.Logf("with: %s; limit %d", gated.describe(alone), st.Limit)
	t.Logf("without: %s", open.describe(alone))

	check := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	// These are no matter of time.
	if limit := cfg.Rules[0].Limit; limit.Algorithm == "fixed" && cfg.Rules[0].Unit == config.UnitConnection && gated.most > *limit.Params.Initial {
		t.Errorf("%d connections at once, the limit is %d", gated.most, *limit.Params.Initial)
	}
	if st.ExemptedTotal < uint64(gated.checks.asked) {
		t.Errorf("%d exempted, of %d checks", st.ExemptedTotal, gated.checks.asked)
	}
	if n := gated.Unsent + open.Unsent + calm.Unsent; n > 0 {
		t.Errorf("%d unsent", n)
	}

	check(calm.Answered == calm.Arrived, "at half of the capacity: %+v", calm.Counts)
	if s.inside != nil { // else the server does not tell how many are in it
		check(gated.inside <= open.inside/3, "%d inside the server, without %d", gated.inside, open.inside)
	}
	check(open.Goodput() < 0.5*r.capacity, "no overload: without a limit goodput is %.2f of the capacity", open.Goodput()/r.capacity)
	check(gated.Goodput() >= r.goodput*r.capacity, "goodput %.2f of the capacity, want %.2f", gated.Goodput()/r.capacity, r.goodput)
	check(gated.Goodput() >= open.Goodput(), "goodput %.0f/s, without %.0f/s", gated.Goodput(), open.Goodput())
	check(gated.P99Seconds <= r.p99*alone.Seconds(), "p99 %.1f times one alone, want %.1f", gated.P99Seconds/alone.Seconds(), r.p99)
	check(gated.refusal.Seconds() <= r.refusal*alone.Seconds(), "refused after %v, want %.1f times one alone", gated.refusal, r.refusal)
	check(gated.checks.failed == 0, "health checks: %v", gated.checks)
	return wrong
}

// startAgent starts an agent, which ends with remove, or the test.
func startAgent(t *testing.T, cfg *config.Config) (a *agent.Agent, remove func()) {
	t.Helper()
	a, err := agent.Start(cfg, "test", slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	remove = sync.OnceFunc(func() {
		if err := a.Remove(); err != nil {
			t.Errorf("remove the agent: %v", err)
		}
	})
	t.Cleanup(remove)
	return a, remove
}

// site makes two hosts, on one of which the server runs, and the example's
// configuration for it.
func (r recipe) site(t *testing.T) (*config.Config, *site) {
	t.Helper()
	cfg, err := config.Load(config.Input{File: filepath.Join("../../examples", r.example)})
	if err != nil {
		t.Fatal(err)
	}
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	cfg.State = filepath.Join(bpffs, "state")
	cfg.Lease = lab.Allow(cfg.Lease)
	cfg.Rules[0].Scope = config.Scope{Netns: srv.NetNS}
	port := cfg.Rules[0].Ports[0]
	s := &site{recipe: r, inside: r.start(t, srv, int(port)), srv: srv, cli: cli, to: netip.AddrPortFrom(srv.Addr4, port)}
	s.addAddresses(t)
	return cfg, s
}
