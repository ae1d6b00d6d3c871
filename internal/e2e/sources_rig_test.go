package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
)

// addressed gives a client more addresses, in the networks that the first link
// to the server has: 10.83.1.n and fd83:1::n, and returns them.
func addressed(t *testing.T, cli *lab.Host, numbers ...int) (four, six []netip.Addr) {
	t.Helper()
	for _, n := range numbers {
		a := netip.MustParseAddr(fmt.Sprintf("10.83.1.%d", n))
		b := netip.MustParseAddr(fmt.Sprintf("fd83:1::%x", n))
		if err := cli.AddAddr("srv", netip.PrefixFrom(a, 24), netip.PrefixFrom(b, 64)); err != nil {
			t.Fatal(err)
		}
		four, six = append(four, a), append(six, b)
	}
	return four, six
}

// connectFrom connects from one of the addresses of a host.
func connectFrom(from *lab.Host, source netip.Addr, to netip.AddrPort) (net.Conn, error) {
	var c net.Conn
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))}
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	err := from.Do(func() (err error) {
		c, err = d.DialContext(ctx, "tcp", to.String())
		return err
	})
	return c, err
}

func dialAs(t *testing.T, from *lab.Host, source netip.Addr, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	c, err := connectFrom(from, source, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

func prefixes(texts ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range texts {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// countedSources is how many sources the programs count units of.
func countedSources(t *testing.T) (n int) {
	t.Helper()
	m := openMap(t, "source_counts")
	defer m.Close()
	var key, value uint64
	for it := m.Iterate(); it.Next(&key, &value); {
		n++
	}
	return n
}

// awaitNoSources waits until no source has a unit any more.
func awaitNoSources(t *testing.T) {
	t.Helper()
	await(t, "no source is counted", func() (any, bool) {
		n := countedSources(t)
		return n, n == 0
	})
}

// ways are how arrivals can be judged: at the lookup of their listener alone, or
// before, on the device, where they can be held.
var ways = []struct {
	name string
	set  func(limit int) func(*config.Rule)
}{
	{"at the lookup", fixed},
	{"on the device", func(limit int) func(*config.Rule) { return holding(limit, 50*time.Millisecond) }},
}

// both applies two settings.
func both(a, b func(*config.Rule)) func(*config.Rule) {
	return func(r *config.Rule) {
		a(r)
		b(r)
	}
}

// startSteady starts an agent with short windows. Its lease outlasts all that its
// clients leave it to run in.
func startSteady(t *testing.T, h *lab.Host, set func(*config.Rule)) *agent.Agent {
	t.Helper()
	return start(t, steady(h, set))
}

func steady(h *lab.Host, set func(*config.Rule)) *config.Config {
	cfg := rules(rule(h, "test", port, set))
	cfg.Lease = time.Minute
	return cfg
}

// inParties runs a churn without sources and classes, and with, and checks that
// nothing is left of these.
func inParties(t *testing.T, churn func(*testing.T, func(*config.Rule)) *agent.Agent) {
	t.Run("plain", func(t *testing.T) { churn(t, func(*config.Rule) {}) })
	t.Run("sources and classes", func(t *testing.T) {
		a := churn(t, func(r *config.Rule) {
			r.PerSource = config.PerSource{Limit: 1000, Prefix4: 32, Prefix6: 64}
			r.Classes = []config.Class{{Name: "half", Sources: prefixes("0.0.0.0/0"), Share: 0.5}}
		})
		awaitNoSources(t)
		await(t, "nothing is left of the classes", func() (any, bool) {
			of := target(a).Classes
			return of, of[0].InFlight+of[0].Waiting+of[1].InFlight+of[1].Waiting == 0
		})
	})
}
