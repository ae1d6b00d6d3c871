package e2e

import (
	"bufio"
	"fmt"
	"io"
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

// visitors connect again and again, n of them at once, each with one request
// on each connection. They return how many were served in a time.
func visitors(t *testing.T, cli *lab.Host, to netip.AddrPort, n int, during time.Duration) (served int) {
	t.Helper()
	var count atomic.Int64
	var group sync.WaitGroup
	for end := time.Now().Add(during); n > 0; n-- {
		group.Go(func() {
			for time.Now().Before(end) {
				if err := fetchOnce(t, cli, to); err != nil {
					t.Error(err)
					return
				}
				if time.Now().Before(end) {
					count.Add(1)
				}
			}
		})
	}
	group.Wait()
	return int(count.Load())
}

func fetchOnce(t *testing.T, cli *lab.Host, to netip.AddrPort) error {
	c, err := cli.Dial(t.Context(), "tcp", to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// A rate that is auto is what keeps the limit busy: limit / time in service.
func TestPacedAuto(t *testing.T) {
	const service = 50 * time.Millisecond
	for _, test := range []struct {
		limit    int
		headroom float64
		want     float64 // a second
	}{
		{10, 1, 200},
		{10, 0.5, 100},
	} {
		t.Run(fmt.Sprintf("limit %d, headroom %v", test.limit, test.headroom), func(t *testing.T) {
			srv, cli, to := hosts(t)
			s, err := srv.StartServer(t.Context(), backend.Spec{Protocol: "http", Listen: []string{":8080"}, Service: service})
			if err != nil {
				t.Fatal(err)
			}
			a := startHolding(t, srv, func(r *config.Rule) {
				holding(test.limit, time.Minute)(r)
				r.Pace.Rate = config.Rate{Auto: true}
				r.Pace.MaxWait = time.Minute
				r.Pace.Headroom = test.headroom
			})
			visitors(t, cli, to, 30, time.Second) // until the time in service is known
			const during = time.Second
			served := float64(visitors(t, cli, to, 30, during)) / during.Seconds()
			rate := target(a).Pace.RatePerSecond
			stats, err := s.Stats()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("a pace of %.1f a second, %.1f served, at most %d at once", rate, served, stats.MaxInside)
			if rate < 0.9*test.want || rate > 1.02*test.want {
				t.Errorf("the pace is %.1f a second, want %v", rate, test.want)
			}
			if served < 0.8*test.want || served > 1.05*test.want {
				t.Errorf("%.1f served a second, want %v", served, test.want)
			}
			if stats.MaxInside > test.limit {
				t.Errorf("%d at once at a limit of %d", stats.MaxInside, test.limit)
			}
			empty(t, a)
		})
	}
}

// A cold target is brought up to its rate.
func TestPacedWarmUp(t *testing.T) {
	const rate, coldFactor, period = 200, 4, 2 * time.Second
	srv, cli, to := hosts(t)
	if _, err := srv.StartServer(t.Context(), backend.Spec{Protocol: "http", Listen: []string{":8080"}}); err != nil {
		t.Fatal(err)
	}
	a := startHolding(t, srv, func(r *config.Rule) {
		paced(rate, time.Minute)(r)
		r.Pace.WarmUp = config.Ramp{Period: period, ColdFactor: coldFactor}
	})
	var served []float64 // a second, in each half second
	for range 8 {
		served = append(served, 2*float64(visitors(t, cli, to, 10, 500*time.Millisecond)))
	}
	t.Logf("served a second: %v", served)
	if cold := served[0]; cold < 0.7*rate/coldFactor || cold > 1.4*rate/coldFactor {
		t.Errorf("%v a second at first, want about %v", cold, rate/coldFactor)
	}
	if warm := (served[6] + served[7]) / 2; warm < 0.85*rate || warm > 1.05*rate {
		t.Errorf("%v a second in the end, want about %v", warm, rate)
	}
	for i := 1; i < len(served); i++ {
		if served[i] < 0.8*served[i-1] {
			t.Errorf("it does not only rise: %v", served)
			break
		}
	}
	if st := target(a); rejectedInAll(st) != 0 || st.BypassedTotal != 0 {
		t.Errorf("rejected or bypassed: %+v", st)
	}
	empty(t, a)
}
