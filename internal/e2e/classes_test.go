package e2e

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/status"
)

// Of half and a quarter of the limit; all other clients are of none.
func classes(r *config.Rule) {
	r.Classes = []config.Class{
		{Name: "gold", Sources: prefixes("10.83.1.17/32", "fd83:1::11/128"), Share: 0.5},
		{Name: "silver", Sources: prefixes("10.83.1.33/32", "fd83:1::21/128"), Share: 0.25},
	}
}

// rush are clients that connect from one address, keep their connections for a
// while and come again, at once or, when they are refused, a moment later.
type rush struct {
	stop context.CancelFunc
	all  sync.WaitGroup
}

func newRush(t *testing.T, from *lab.Host, source netip.Addr, to netip.AddrPort, clients int, stay time.Duration) *rush {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &rush{stop: stop}
	for range clients {
		r.all.Go(func() {
			for ctx.Err() == nil {
				c, err := connectFrom(from, source, to)
				if err != nil {
					time.Sleep(15 * time.Millisecond)
					continue
				}
				time.Sleep(stay)
				c.Close()
			}
		})
	}
	t.Cleanup(r.end)
	return r
}

func (r *rush) end() {
	r.stop()
	r.all.Wait()
}

// mostlyInFlight is how many units of each class were in flight at three moments
// of four at least, and of all the most at once. The rest of the time is for
// clients who find out that a slot is free only when they try again.
func mostlyInFlight(t *testing.T, a *agent.Agent, d time.Duration) (classes map[string]int, most int) {
	t.Helper()
	peak := watchPeak(t)
	seen := make(map[string][]int)
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, c := range target(a).Classes {
			seen[c.Name] = append(seen[c.Name], c.InFlight)
		}
	}
	classes = make(map[string]int)
	for name, n := range seen {
		slices.Sort(n)
		classes[name] = n[len(n)/4]
	}
	return classes, peak()
}

// lastPeak is the most that were in flight at once in the last window in which
// anybody came in.
func lastPeak(t *testing.T) int {
	t.Helper()
	m := openMap(t, "states")
	defer m.Close()
	state := make([]byte, m.ValueSize())
	if err := m.Lookup(uint32(0), state); err != nil {
		t.Fatal(err)
	}
	return int(binary.NativeEndian.Uint32(state[8:]))
}

func limitOf(st status.Target, class string) int {
	for _, c := range st.Classes {
		if c.Name == class {
			return c.Limit
		}
	}
	return -1
}

// Under load each class has what is guaranteed to it, and all together never
// more than the limit, whatever that is. What a class leaves of its guarantee is
// kept for it; what nobody has a claim to is for all.
func TestClassesUnderLoad(t *testing.T) {
	const stay, clients, watched = 150 * time.Millisecond, 40, 800 * time.Millisecond
	for i, ip := range []string{"IPv4", "IPv6"} { // the one here, the other there: each takes seconds
		way := ways[i]
		t.Run(way.name+" "+ip, func(t *testing.T) {
			srv, cli, to := hosts(t)
			from, six := addressed(t, cli, 17, 33, 49)
			if ip == "IPv6" {
				from, to = six, netip.AddrPortFrom(srv.Addr6, port)
			}
			serveUntilEOF(t, srv)
			with := func(limit int) *config.Config { return steady(srv, both(way.set(limit), classes)) }
			a := start(t, with(20))
			newRush(t, cli, from[2], to, clients, stay)
			gold := newRush(t, cli, from[0], to, clients, stay)
			silver := newRush(t, cli, from[1], to, clients, stay)
			for _, limit := range []int{20, 28, 8} {
				reload(t, a, with(limit))
				await(t, "the limit is kept", func() (any, bool) {
					st := target(a)
					return st, st.Limit == limit && lastPeak(t) <= limit
				})
				got, most := mostlyInFlight(t, a, watched)
				t.Logf("limit %d: %v, at most %d", limit, got, most)
				if most > limit {
					t.Errorf("limit %d: %d were in flight at once", limit, most)
				}
				for class, guaranteed := range map[string]int{"gold": limit / 2, "silver": limit / 4} {
					if got[class] < guaranteed {
						t.Errorf("limit %d: %d of %s in flight, guaranteed are %d", limit, got[class], class, guaranteed)
					}
				}
				if st := target(a); limitOf(st, "gold") != limit/2 || limitOf(st, "silver") != limit/4 || limitOf(st, "others") != limit/4 {
					t.Errorf("limit %d: status says %+v", limit, st.Classes)
				}
			}
			// Who does not come leaves the others what is free, and no more.
			reload(t, a, with(20))
			gold.end()
			silver.end()
			await(t, "only the others are left", func() (any, bool) {
				st := target(a)
				return st, lastPeak(t) <= 5
			})
			if got, most := mostlyInFlight(t, a, watched); most > 5 || got["others"] < 5 {
				t.Errorf("without the classes: %v, at most %d; want 5 of the others", got, most)
			}
		})
	}
}

// A thousand of each class at the same moment: each has its guarantee, all
// together the limit, and not one more.
func TestClassesBurst(t *testing.T) {
	const limit, size = 50, 300
	srv, cli, to4 := hosts(t)
	four, six := addressed(t, cli, 17, 33, 49)
	k := keep(t, srv, "tcp", ":8080")
	a := startSteady(t, srv, both(fixed(limit), classes))
	for _, to := range []netip.AddrPort{to4, netip.AddrPortFrom(srv.Addr6, port)} {
		from := four
		if to.Addr().Is6() {
			from = six
		}
		for run := range 3 {
			peak := watchPeak(t)
			c := newCrowdOf(t, cli, from, to, 3*size)
			c.wait(t, patience)
			if len(c.connected) != limit || c.refused != 3*size-limit {
				t.Errorf("run %d: %v; want %d connected", run, c, limit)
			}
			k.await(t, limit)
			awaitInFlight(t, a, limit)
			if n := peak(); n != limit {
				t.Errorf("run %d: at most %d were in flight", run, n)
			}
			for _, class := range target(a).Classes {
				if least := map[string]int{"gold": 25, "silver": 12, "others": 0}[class.Name]; class.InFlight < least {
					t.Errorf("run %d: %d of %s, guaranteed are %d", run, class.InFlight, class.Name, least)
				}
			}
			c.close()
			k.empty(t, a)
		}
	}
	for _, class := range target(a).Classes {
		if class.InFlight != 0 || class.Waiting != 0 {
			t.Errorf("in the end: %+v", class)
		}
	}
}

// One of a class whose guarantee is free does not wait behind those who wait for
// the free part; nor does one that must wait itself.
func TestClassesWhileOthersWait(t *testing.T) {
	srv, cli, to := hosts(t)
	from, _ := addressed(t, cli, 17, 33, 49)
	k := keep(t, srv, "tcp", ":8080")
	a := startSteady(t, srv, both(holding(4, 20*time.Second), classes))
	newCrowdOf(t, cli, from[2:], to, 4) // the others: one of four is free to all
	awaitUnits(t, 1, 3)
	for i := range 2 { // gold has two
		dialAs(t, cli, from[0], to)
		awaitUnits(t, 2+i, 3)
	}
	newCrowdOf(t, cli, from[:1], to, 1) // a third waits, behind the others
	awaitUnits(t, 3, 4)
	dialAs(t, cli, from[1], to) // silver has one
	awaitUnits(t, 4, 4)
	k.await(t, 4)
	// One of gold's own ends: the next of gold comes in, not the others.
	k.close(2)
	await(t, "gold has its share, and the others what is free", func() (any, bool) {
		st := target(a)
		return st.Classes, st.InFlight == 4 && st.Waiting == 2 && st.Classes[0].InFlight == 2 && st.Classes[2].InFlight == 1
	})
	k.empty(t, a)
	empty(t, a)
}
