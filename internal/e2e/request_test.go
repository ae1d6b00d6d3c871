package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/config"
)

func TestRequestsOnKeptAliveConnections(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	s, err := srv.StartServer(t.Context(), backend.Spec{Protocol: "http", Listen: []string{":8080"}, Workers: 10, Service: 20 * time.Millisecond, Contention: 1})
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.AddrPortFrom(srv.Addr4, 8080)
	run := func(n int, d time.Duration) float64 {
		if err := s.ResetPeak(); err != nil {
			t.Fatal(err)
		}
		var count, failed atomic.Int64
		var wg sync.WaitGroup
		end := time.Now().Add(d)
		for range n {
			c := dial(t, cli, addr)
			wg.Go(func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for time.Now().Before(end) {
					c.SetDeadline(time.Now().Add(20 * time.Second))
					if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: test\r\n\r\n"); err != nil {
						failed.Add(1)
						t.Log(err)
						return
					}
					resp, err := http.ReadResponse(in, nil)
					if err != nil {
						failed.Add(1)
						t.Log(err)
						return
					}
					resp.Body.Close()
					count.Add(1)
				}
			})
		}
		wg.Wait()
		st, _ := s.Stats()
		t.Logf("%d clients: %.1f/s, failed %d, max inside %d", n, float64(count.Load())/d.Seconds(), failed.Load(), st.MaxInside)
		return float64(count.Load()) / d.Seconds()
	}
	run(10, 3*time.Second)
	run(100, 3*time.Second)
	a := startAgent(t, srv, 8080, func(r *config.Rule) {
		fixed(10)(r)
		r.Unit = config.UnitRequest
		r.Hold = config.Hold{MaxWait: 10 * time.Second, MaxWaiting: 1000, Order: config.OrderFIFO}
	})
	run(100, 3*time.Second)
	st := target(a)
	fmt.Printf("%+v\n%+v\n", st, a.Snapshot().ProgramsAttached)
	time.Sleep(300 * time.Millisecond)
	st = target(a)
	fmt.Printf("%+v\n", st)
}
