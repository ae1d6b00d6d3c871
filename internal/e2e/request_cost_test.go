package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"headgate/internal/lab"
)

// kernelBPFStats is BPF_STATS_RUN_TIME of linux/bpf.h.
const kernelBPFStats = 0

// costs measures what each program of the agent takes a run while f runs, the
// measuring itself included.
func costs(t *testing.T, f func()) map[string]time.Duration {
	t.Helper()
	stats, err := ebpf.EnableStats(kernelBPFStats)
	if err != nil {
		t.Fatalf("have the kernel time programs: %v", err)
	}
	defer stats.Close()
	read := func() map[string][2]time.Duration {
		all := make(map[string][2]time.Duration)
		for id, name := range programsWith(t, pinnedMaps(t)) {
			p, err := ebpf.NewProgramFromID(id)
			if err != nil {
				continue
			}
			s, err := p.Stats()
			p.Close()
			if err != nil {
				t.Fatal(err)
			}
			sum := all[name]
			all[name] = [2]time.Duration{sum[0] + s.Runtime, sum[1] + time.Duration(s.RunCount)}
		}
		return all
	}
	before := read()
	f()
	each := make(map[string]time.Duration)
	for name, sum := range read() {
		if n := sum[1] - before[name][1]; n > 1000 {
			each[name] = (sum[0] - before[name][0]) / n
		}
	}
	return each
}

// What requests cost where they are counted and none has to wait.
func TestRequestCost(t *testing.T) {
	srv, cli, to := hosts(t)
	other := netip.AddrPortFrom(to.Addr(), port+1)
	for _, at := range []netip.AddrPort{to, other} {
		group := subCgroup(t, srv, fmt.Sprint(at.Port()))
		if _, err := srv.StartNginxIn(t.Context(), group, lab.Nginx{Port: int(at.Port())}); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(at netip.AddrPort, d time.Duration) float64 {
		got := askers{n: 16, from: cli, to: at}.run(t, d)
		got.check(t)
		return got.rate
	}
	var ratios []float64
	for i := range 4 {
		var rate [2]float64 // without the programs, and with them
		for j := range 2 {
			with := i%2 ^ j
			end := func() error { return nil }
			if with == 1 {
				end = begin(t, srv, requests(1000)).Remove
			}
			rate[with] = ask(to, 250*time.Millisecond)
			if err := end(); err != nil {
				t.Fatal(err)
			}
		}
		ratios = append(ratios, rate[1]/rate[0])
	}
	slices.Sort(ratios)
	t.Logf("requests a second with the programs, as a share of those without: %.2f", ratios)
	for _, test := range []struct {
		what  string
		to    netip.AddrPort
		limit int
	}{
		{"another port", other, 1000},
		{"requests far below the limit", to, 60_000},
		{"requests near the limit", to, 20},
	} {
		a := begin(t, srv, requests(test.limit))
		each := costs(t, func() { ask(test.to, 500*time.Millisecond) })
		if err := a.Remove(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: a run of %v", test.what, each)
		if n := each["headgate_arrive"]; n == 0 || n > 2*time.Microsecond {
			t.Errorf("headgate_arrive took %v", n)
		}
	}
}
