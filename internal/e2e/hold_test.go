package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/config"
)

// A hundred connects at once, ten a second: everybody comes in, one each
// tenth of a second.
func TestPacedBurst(t *testing.T) {
	const clients = 50
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	keep(t, srv, "tcp", ":8080")
	a := startAgent(t, srv, 8080, func(r *config.Rule) {
		fixed(1000)(r)
		r.Pace = config.Pace{Rate: config.Rate{PerSecond: 10}, MaxWait: 20 * time.Second, Headroom: 1}
		r.Hold.MaxWaiting = 1000
		r.Hold.Order = config.OrderFIFO
	})
	begin := time.Now()
	var mu sync.Mutex
	var times []time.Duration
	var conns []net.Conn
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			c, err := cli.Dial(t.Context(), "tcp", netip.AddrPortFrom(srv.Addr4, 8080).String())
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("connect: %v", err)
				return
			}
			times = append(times, time.Since(begin))
			conns = append(conns, c)
		})
	}
	time.Sleep(time.Second)
	fmt.Printf("%+v\n", target(a))
	wg.Wait()
	slices.Sort(times)
	for i := 1; i < len(times); i++ {
		if i < 10 {
			t.Log(times[i] - times[i-1])
		}
	}
	t.Logf("last after %v", times[len(times)-1])
	for _, c := range conns {
		c.Close()
	}
	fmt.Printf("%+v\n", target(a))
}
