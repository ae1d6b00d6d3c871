package e2e

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/pkg/config"
	"headgate/pkg/status"
)

// Whoever changes limits and rates, and however often: what is counted depends
// on none of it.
func TestEightWriters(t *testing.T) {
	const writers = 8
	srv, cli, to := hosts(t)
	serveUntilEOF(t, srv)
	a := protect(t, srv, 100)
	for range 5 {
		dial(t, cli, to)
	}
	c := comeAndGoIf(t, cli, to, 32, comersRate, true) // each of whom the writers make wait
	var group sync.WaitGroup
	var changes atomic.Int64
	end := time.Now().Add(10 * time.Second)
	for w := range writers {
		r := rand.New(rand.NewPCG(1, uint64(w)))
		group.Go(func() {
			for time.Now().Before(end) {
				cfg := configFor(srv, port, func(rule *config.Rule) {
					fixed(r.IntN(20))(rule)
					rule.Force = true
					if r.IntN(2) == 0 {
						rule.Pace.Rate = config.Rate{PerSecond: float64(1 + r.IntN(5000))}
					}
					if r.IntN(4) == 0 {
						rule.Mode = config.ModeObserve
					}
				})
				if err := a.Reload(func() (*config.Config, error) { return cfg, nil }); err != nil {
					t.Error(err)
					return
				}
				changes.Add(1)
			}
		})
	}
	group.Wait()
	n, rate := c.stop()
	refused := c.out.Load()
	came := rate * float64(n+int(refused)) / float64(n)
	t.Logf("%d changes; %d connections, and %d refused, %.0f a second", changes.Load(), n, refused, came)
	// The writers take what they can of the CPUs, too.
	if came < comersRate/4 || refused == 0 || changes.Load() < 100 {
		t.Error("that is no test")
	}
	exact(t, srv)
	awaitInFlight(t, a, 5)
	if got := recount(t, a); got != (status.Recount{}) {
		t.Errorf("corrected, with nothing wrong: %+v", got)
	}
}
