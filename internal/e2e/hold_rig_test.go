package e2e

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/netfilter"
	"headgate/pkg/scope"
	"headgate/pkg/status"
)

// holding is a fixed limit at which whoever finds it reached waits.
func holding(limit int, maxWait time.Duration) func(*config.Rule) {
	return func(r *config.Rule) {
		fixed(limit)(r)
		r.Hold.MaxWait = maxWait
	}
}

// paced is a pace, within a limit that nobody reaches.
func paced(rate float64, maxWait time.Duration) func(*config.Rule) {
	return func(r *config.Rule) {
		fixed(60_000)(r)
		r.Hold.MaxWaiting = 16384
		r.Pace.Rate = config.Rate{PerSecond: rate}
		r.Pace.MaxWait = maxWait
	}
}

// startHolding starts an agent whose windows are short.
func startHolding(t *testing.T, h *lab.Host, set func(*config.Rule)) *agent.Agent {
	t.Helper()
	cfg := configFor(h, port, set)
	cfg.Window = 20 * time.Millisecond
	return start(t, cfg)
}

// kernelUnits is what the programs count now, with or without an agent.
func kernelUnits(t *testing.T) (inFlight, waiting int) {
	t.Helper()
	m := openMap(t, "states")
	defer m.Close()
	state := make([]byte, m.ValueSize())
	if err := m.Lookup(uint32(0), state); err != nil {
		t.Fatal(err)
	}
	units := binary.NativeEndian.Uint64(state)
	return int(uint32(units)), int(units >> 32)
}

// awaitUnits waits until the programs count so many in flight and waiting.
func awaitUnits(t *testing.T, inFlight, waiting int) {
	t.Helper()
	await(t, "in flight "+strconv.Itoa(inFlight)+", waiting "+strconv.Itoa(waiting), func() (any, bool) {
		n, w := kernelUnits(t)
		return [2]int{n, w}, n == inFlight && w == waiting
	})
}

// empty checks that in the end nobody is in flight and nobody waits.
func empty(t *testing.T, a *agent.Agent) {
	t.Helper()
	awaitUnits(t, 0, 0)
	await(t, "nobody is left", func() (any, bool) {
		st := target(a)
		return st, st.InFlight == 0 && st.Waiting == 0 && st.Pending == 0
	})
}

// queued is how many packets of a host ever went to its netfilter queue, by
// the kernel's own numbering of them.
func queued(t *testing.T, h *lab.Host) (n int) {
	t.Helper()
	err := h.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_queue")
		if err != nil {
			return err
		}
		fields := strings.Fields(string(text))
		if len(fields) != 9 {
			t.Fatalf("not one queue: %q", text)
		}
		n, err = strconv.Atoi(fields[7])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// rejectedInAll adds up the refusals of a target.
func rejectedInAll(st status.Target) uint64 {
	r := st.RejectedTotal
	return r.Limit + r.Pace + r.Source + r.HoldTimeout
}

// slack is how late a busy machine may be.
var slack = lab.Allow(100 * time.Millisecond)

// hosts makes two of them on a veth pair, and returns where the server's port is.
func hosts(t *testing.T) (srv, cli *lab.Host, to netip.AddrPort) {
	t.Helper()
	l := lab.ForTest(t, "srv", "cli")
	return l.Host("srv"), l.Host("cli"), netip.AddrPortFrom(l.Host("srv").Addr4, port)
}

// quantile returns one of times; they need not be sorted.
func quantile(times []time.Duration, q float64) time.Duration {
	s := slices.Sorted(slices.Values(times))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

// heldPackets is how many packets of a host wait in its netfilter queues now.
func heldPackets(t *testing.T, h *lab.Host) (n int) {
	t.Helper()
	ns, err := scope.OpenNetns(h.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	queues, err := netfilter.Queues(ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range queues {
		n += q.Held
	}
	return n
}

func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
