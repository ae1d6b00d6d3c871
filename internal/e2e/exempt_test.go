package e2e

import (
	"net/netip"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/loader"
)

// A health check from an exempt source gets in while the port is at its limit,
// and nothing of it counts: not when it stays, not after a recount, not for an
// agent that takes over or begins anew.
func TestExemptAtTheLimit(t *testing.T) {
	const limit, probes = 5, 20
	exempting := func(networks ...string) func(*config.Rule) {
		return func(r *config.Rule) { r.Exempt = prefixes(networks...) }
	}
	exempt := exempting("10.83.1.200/32", "fd83:1::c8/128")
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			srv, cli, to4 := hosts(t)
			to6 := netip.AddrPortFrom(srv.Addr6, port)
			k := keep(t, srv, "tcp", ":8080") // of both families: IPv4 is v4-mapped there
			four, six := addressed(t, cli, 200)
			set := both(way.set(limit), exempt)
			a := begin(t, srv, set)
			t.Cleanup(func() { _ = a.Remove() })

			own := []netip.Addr{cli.Addr4, cli.Addr6}
			for i := range limit {
				dialAs(t, cli, own[i%2], []netip.AddrPort{to4, to6}[i%2])
			}
			awaitInFlight(t, a, limit)
			for i := range probes {
				dialAs(t, cli, []netip.Addr{four[0], six[0]}[i%2], []netip.AddrPort{to4, to6}[i%2])
			}
			k.await(t, limit+probes)
			full := func(a *agent.Agent, exempted uint64) {
				t.Helper()
				await(t, "only the others count", func() (any, bool) {
					st := target(a)
					return st, st.InFlight == limit && st.Pending == 0 && st.ExemptedTotal == exempted && st.Waiting == 0
				})
				for i, to := range []netip.AddrPort{to4, to6} {
					if _, err := connectFrom(cli, own[i], to); !isRefused(err) {
						t.Errorf("a normal client at the limit: %v", err)
					}
				}
			}
			full(a, probes)
			if err := a.Recount(); err != nil {
				t.Fatal(err)
			}
			full(a, probes)
			if st := target(a); st.Recount.InFlight != 0 {
				t.Errorf("a recount had to correct: %+v", st.Recount)
			}
			if n := measured(t, 0, loader.Handshake).Count; n != limit {
				t.Errorf("%d handshakes were timed, want those of the %d others", n, limit)
			}

			// Taken over.
			if err := a.Stop(); err != nil {
				t.Fatal(err)
			}
			a = begin(t, srv, set)
			full(a, probes)
			// From the sockets alone.
			if err := a.Remove(); err != nil {
				t.Fatal(err)
			}
			a = begin(t, srv, set)
			full(a, 0)
			if st := target(a); st.Loopback != "counted" {
				t.Errorf("loopback is said to be %s", st.Loopback)
			}

			// What is exempt at run time no longer counts; what is not, does.
			change := func(set func(*config.Rule)) {
				t.Helper()
				reload(t, a, steady(srv, set))
			}
			change(way.set(limit))
			awaitInFlight(t, a, limit+probes)
			change(both(way.set(limit), exempting("fd83:1::c8/128")))
			awaitInFlight(t, a, limit+probes/2) // those over IPv4, and the normal ones
			change(set)
			awaitInFlight(t, a, limit)

			k.empty(t, a)
			if st := target(a); st.RejectedTotal.Limit+st.RejectedTotal.HoldTimeout == 0 {
				t.Errorf("nobody was refused: %+v", st.RejectedTotal)
			}
		})
	}
}

// Requests of an exempt client get in beside one that has the only slot, and one
// that waits for it.
func TestExemptRequests(t *testing.T) {
	p := newPair(t, func(r *config.Rule) { r.Exempt = prefixes("10.83.1.200/32") })
	four, _ := addressed(t, p.cli, 200)
	for i := range 3 {
		c := dialAs(t, p.cli, four[0], p.to)
		p.server.await(t, 3+i)
		p.say(c, "probe")
		p.hears(p.server.conns[2+i], "probe")
		if _, err := p.server.conns[2+i].Write([]byte("alive")); err != nil {
			t.Fatal(err)
		}
		p.hears(c, "alive")
	}
	awaitUnits(t, 1, 1)
	await(t, "the exempt are told", func() (any, bool) {
		st := target(p.agent)
		return st, st.ExemptedTotal == 3 && st.Connections == 2 && st.AdmittedTotal == 1
	})
	if s, h := measured(t, 0, loader.Service).Count, measured(t, 0, loader.Handshake).Count; s != 0 || h != 2 {
		t.Errorf("%d responses and %d handshakes were timed, want none and those of the 2 others", s, h)
	}
}

// Loopback counts like any other source, and the status says where it does not.
func TestExemptLoopback(t *testing.T) {
	h := lab.ForTest(t, "srv").Host("srv")
	k := keep(t, h, "tcp", ":8080")
	addrs := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("[::1]:8080")}
	for _, tt := range []struct {
		name   string
		exempt []netip.Prefix
		says   string
	}{
		{"by default", nil, "counted"},
		{"exempt", prefixes("127.0.0.0/8", "::1/128"), "exempt"},
		{"exempt over IPv4", prefixes("127.0.0.0/8"), "partly exempt"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := startAgent(t, h, port, both(fixed(2), func(r *config.Rule) { r.Exempt = tt.exempt }))
			if st := target(a); st.Loopback != tt.says {
				t.Errorf("status says loopback: %s, want %s", st.Loopback, tt.says)
			}
			for i, to := range addrs {
				exempt := tt.says == "exempt" || tt.says == "partly exempt" && i == 0
				c := newCrowd(t, h, to, 3)
				c.wait(t, patience)
				want := 2
				if exempt {
					want = 3
				}
				if len(c.connected) != want || c.refused != 3-want {
					t.Errorf("%v: %v, want %d connected", to, c, want)
				}
				k.await(t, want)
				if exempt {
					want = 0
				}
				awaitInFlight(t, a, want)
				staysInFlight(t, a, want, 100*time.Millisecond)
				c.close()
				k.empty(t, a)
			}
		})
	}
}
