package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/pkg/config"
	"headgate/pkg/source"
)

// Who connects from where, in these tests: two sources by their prefixes, and a
// network that is shared by many. fd83:1::/120 has the same numbers.
var (
	fromOne    = []int{17, 18}      // of 10.83.1.16/28, fd83:1::10/124
	fromTwo    = []int{33}          // of 10.83.1.32/28, fd83:1::20/124
	fromShared = []int{65, 81, 112} // of 10.83.1.64/26, fd83:1::40/122
)

func perSource(limit, shared int) func(*config.Rule) {
	return func(r *config.Rule) {
		r.PerSource = config.PerSource{Limit: limit, Prefix4: 28, Prefix6: 124, Shared: []source.Range{
			{Prefix: netip.MustParsePrefix("10.83.1.64/26"), Limit: shared},
			{Prefix: netip.MustParsePrefix("fd83:1::40/122"), Limit: shared},
		}}
	}
}

// A thousand connect at the same moment, from sources with a limit each: of every
// one exactly so many come in, and when they have gone nothing of them is left.
func TestPerSourceBurst(t *testing.T) {
	const limit, shared, most, size = 20, 50, 500, 1000
	for _, way := range ways {
		srv, cli, to4 := hosts(t)
		addresses := make(map[bool][3][]netip.Addr)
		var four, six [3][]netip.Addr
		for i, numbers := range [][]int{fromOne, fromTwo, fromShared} {
			four[i], six[i] = addressed(t, cli, numbers...)
		}
		addresses[true], addresses[false] = four, six
		k := keep(t, srv, "tcp", ":8080")
		a := startSteady(t, srv, both(way.set(most), perSource(limit, shared)))
		for run, to := range []netip.AddrPort{to4, netip.AddrPortFrom(srv.Addr6, port), to4} {
			t.Run(fmt.Sprint(way.name, run), func(t *testing.T) {
				before := target(a)
				peak := watchPeak(t)
				var clients []netip.Addr
				from := addresses[to.Addr().Is4()]
				for i := range size { // each a third
					of := from[i%3]
					clients = append(clients, of[i/3%len(of)])
				}
				c := newCrowdOf(t, cli, clients, to, size)
				c.wait(t, patience)
				const in = 2*limit + shared
				if len(c.connected) != in || c.refused != size-in {
					t.Errorf("%v; want %d connected, the others refused", c, in)
				}
				k.await(t, in)
				awaitInFlight(t, a, in)
				if n := peak(); n != in {
					t.Errorf("at most %d were in flight, want %d", n, in)
				}
				if n := countedSources(t); n != 3 {
					t.Errorf("%d sources are counted, want 3", n)
				}
				byFirst := make(map[string]int)
				k.mu.Lock()
				for _, c := range k.conns {
					peer := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
					for i, of := range from {
						for _, a := range of {
							if a == peer {
								byFirst[fmt.Sprint(i)]++
							}
						}
					}
				}
				k.mu.Unlock()
				if byFirst["0"] != limit || byFirst["1"] != limit || byFirst["2"] != shared {
					t.Errorf("of the sources came in %v", byFirst)
				}
				await(t, "all others are refused for their source", func() (any, bool) {
					st := target(a)
					return st, st.RejectedTotal.Source-before.RejectedTotal.Source == size-in
				})
				if st := target(a); st.RejectedTotal.Limit != 0 || st.HeldTotal != 0 {
					t.Errorf("refused for the limit, or held: %+v", st)
				}
				c.close()
				k.empty(t, a)
				awaitNoSources(t)
			})
		}
		if err := a.Remove(); err != nil {
			t.Fatal(err)
		}
	}
}

// Of a source that holds as many as it may, some wait and give up, some are let
// in, some are refused when their time is over: in the end it has all of its
// limit again.
func TestPerSourceWhileHeld(t *testing.T) {
	const limit, slots, runs = 12, 4, 3
	srv, cli, to := hosts(t)
	four, _ := addressed(t, cli, fromOne...)
	k := keep(t, srv, "tcp", ":8080")
	a := startSteady(t, srv, both(holding(slots, 300*time.Millisecond), perSource(limit, 1)))
	for range runs {
		before := target(a)
		c := newCrowdOf(t, cli, four, to, 2*limit)
		awaitUnits(t, slots, limit-slots)
		await(t, "the others are refused for their source", func() (any, bool) {
			st := target(a)
			return st, st.RejectedTotal.Source-before.RejectedTotal.Source == limit
		})
		// Two that wait are given up, two that are in are ended, so that two of
		// those that wait come in.
		c.wait(t, 20*time.Millisecond)
		for _, fd := range c.connecting[:2] {
			_ = unix.Close(fd)
		}
		c.connecting = c.connecting[2:]
		k.close(2)
		c.wait(t, patience)
		c.close()
		k.empty(t, a)
		empty(t, a)
		awaitNoSources(t)
	}
	// Killed and taken over while its limit is taken.
	c := newCrowdOf(t, cli, four, to, slots)
	c.wait(t, patience)
	awaitInFlight(t, a, slots)
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	a = startSteady(t, srv, both(holding(limit+10, 0), perSource(limit, 1)))
	more := newCrowdOf(t, cli, four, to, limit)
	more.wait(t, patience)
	if len(more.connected) != limit-slots || more.refused != slots {
		t.Errorf("beside %d that were there: %v, want %d connected", slots, more, limit-slots)
	}
	// And counted anew from the sockets.
	k.await(t, limit)
	if err := a.Remove(); err != nil {
		t.Fatal(err)
	}
	a = startSteady(t, srv, both(holding(limit+10, 0), perSource(limit, 1)))
	again := newCrowdOf(t, cli, four, to, 2)
	again.wait(t, patience)
	if again.refused != 2 {
		t.Errorf("beside %d that were there: %v, want 2 refused", limit, again)
	}
	more.close()
	c.close()
	k.empty(t, a)
	empty(t, a)
	awaitNoSources(t)
}

// Requests of one source, on as many connections as it likes: so many are under
// way or wait at once, the others have their connection reset.
func TestPerSourceRequests(t *testing.T) {
	const limit, clients = 3, 8
	srv, cli, to := hosts(t)
	four, _ := addressed(t, cli, 17, 33)
	k := keep(t, srv, "tcp", ":8080")
	a := startSteady(t, srv, both(requests(2), perSource(limit, 1)))
	ask := func(from netip.Addr, n int) (conns []*net.TCPConn) {
		t.Helper()
		for range n {
			c := dialAs(t, cli, from, to)
			conns = append(conns, c)
		}
		for _, c := range conns {
			if _, err := io.WriteString(c, "ask"); err != nil {
				t.Fatal(err)
			}
		}
		return conns
	}
	conns := ask(four[0], clients)
	awaitUnits(t, 2, limit-2)
	await(t, "those beyond are refused", func() (any, bool) {
		st := target(a)
		return st, st.RejectedTotal.Source == clients-limit
	})
	reset := 0
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			reset++
		}
	}
	if reset != clients-limit {
		t.Errorf("%d connections were reset, want %d", reset, clients-limit)
	}
	ask(four[1], 1) // another source waits in the same queue
	awaitUnits(t, 2, limit-1)
	k.empty(t, a)
	await(t, "nobody is left", func() (any, bool) {
		k.closeAll()
		n, w := kernelUnits(t)
		return [2]int{n, w}, n == 0 && w == 0
	})
	awaitNoSources(t)
}

// One source has fifty waiting when another's two come: they have the second and
// the fourth of the slots that come free, not the last ones.
func TestSourcesHaveTheirTurn(t *testing.T) {
	const greedy, turns = 50, 6
	srv, cli, to := hosts(t)
	four, _ := addressed(t, cli, 17, 33)
	k := keep(t, srv, "tcp", ":8080")
	a := startSteady(t, srv, both(holding(1, 20*time.Second), perSource(100, 1)))
	many := newCrowdOf(t, cli, four[:1], to, greedy+1)
	awaitUnits(t, 1, greedy)
	few := newCrowdOf(t, cli, four[1:], to, 2)
	awaitUnits(t, 1, greedy+2)
	time.Sleep(100 * time.Millisecond) // for the agent to have read them, too
	var order []bool
	k.await(t, 1)
	for range turns {
		k.close(1)
		k.await(t, 1)
		peer := k.conns[0].RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		order = append(order, peer == four[1])
	}
	if first, second := indexOf(order, 0), indexOf(order, 1); first > 1 || second > 3 {
		t.Errorf("the other source came in at %v", order)
	}
	many.close()
	few.close()
	k.empty(t, a)
	empty(t, a)
	awaitNoSources(t)
}

// indexOf is where the n-th true is, from 0; or the length.
func indexOf(all []bool, n int) int {
	for i, is := range all {
		if is {
			if n == 0 {
				return i
			}
			n--
		}
	}
	return len(all)
}
