package e2e

import (
	"fmt"
	"testing"
	"time"

	"headgate/internal/lab/backend"
	"headgate/pkg/config"
)

// Clients that keep their connections, in front of a server that becomes slower
// than it gets faster by more requests at once. A limit of requests gives all
// of them what ten would get, whatever their number.
func TestRequestLimit(t *testing.T) {
	srv, cli, to := hosts(t)
	s := serve(t, srv, contended("http"))
	ask := func(t *testing.T, n int, d time.Duration) answers {
		mostInside(t, s)
		got := askers{n: n, from: cli, to: to}.run(t, d)
		got.log(t, fmt.Sprint(n, " clients"))
		got.check(t)
		return got
	}
	alone := ask(t, 10, 2*time.Second)
	without := ask(t, 100, 2*time.Second)

	check := func(t *testing.T, n int, share float64) {
		for round := 1; ; round++ {
			got := ask(t, n, 2*time.Second)
			if got.rate >= share*alone.rate && got.rate >= 2.5*without.rate {
				return
			}
			t.Logf("round %d: %.2f of what ten get alone, want %.2f; %.1f times what %d get without a limit, want 2.5",
				round, got.rate/alone.rate, share, got.rate/without.rate, n)
			if round == rounds {
				t.Fatalf("no better in %d rounds", rounds)
			}
		}
	}
	t.Run("fixed", func(t *testing.T) {
		a := startHolding(t, srv, requests(10))
		neverDrifts(t, a)
		for _, n := range []int{100, 1000} {
			check(t, n, 0.95)
			if most := mostInside(t, s); most != 10 {
				t.Errorf("%d clients: %d inside at once, want 10", n, most)
			}
		}
		empty(t, a)
	})
	t.Run("guarded", func(t *testing.T) {
		a := startAgent(t, srv, port, func(r *config.Rule) {
			requests(10)(r)
			r.Limit = config.DefaultRule().Limit
		})
		ask(t, 100, 5*time.Second) // to learn
		check(t, 100, 0.9)
		t.Logf("limit %d: at most %d inside", target(a).Limit, mostInside(t, s))
		empty(t, a)
	})
}

// With much room requests are counted where they reach their sockets, near the
// limit where they reach the host: none is let in too many in between.
func TestRequestLimitFromFarBelow(t *testing.T) {
	const limit = 400
	srv, cli, to := hosts(t)
	s := serve(t, srv, backend.Spec{Protocol: "http", Service: 200 * time.Millisecond})
	ag := startHolding(t, srv, requests(limit))
	neverDrifts(t, ag)
	conns := askers{n: 1000, from: cli, to: to}.dial(t)
	for round := range 3 {
		got := askers{each: 2}.drive(conns, patience)
		got.check(t)
		if most := mostInside(t, s); most != limit {
			t.Errorf("round %d: %d inside at once, want %d", round, most, limit)
		}
		empty(t, ag)
	}
}
