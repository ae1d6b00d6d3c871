package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/agent"
	"headgate/pkg/config"
)

// Ten thousand requests over a network that loses, delays and doubles packets:
// each is answered, and none is counted twice or never.
func TestRequestsOverBadNetwork(t *testing.T) {
	const clients, each = 50, 200
	var bad atomic.Bool
	var lost, late, doubled atomic.Int64
	w := wired(t, func(f *lab.Frame) {
		if _, ok := f.Segment(); !ok || !bad.Load() {
			return
		}
		switch n := rand.IntN(1000); {
		case n < 10:
			lost.Add(1)
			f.Drop()
		case n < 30:
			late.Add(1)
			f.Delay(time.Duration(rand.IntN(5)) * time.Millisecond)
		case n < 40:
			doubled.Add(1)
			f.Duplicate(time.Duration(rand.IntN(3)) * time.Millisecond)
		}
	})
	s := serve(t, w.A.Host, backend.Spec{Protocol: "http", Workers: 5, Service: time.Millisecond})
	ag := startHolding(t, w.A.Host, requests(5))
	neverDrifts(t, ag)
	a := askers{n: clients, each: each, from: w.B.Host, to: netip.AddrPortFrom(w.A.Addr4, port)}
	conns := a.dial(t)
	await(t, "all are connected", func() (any, bool) { st := target(ag); return st, st.Connections == clients })
	bad.Store(true)
	began := time.Now()
	got := a.drive(conns, lab.Allow(time.Minute))
	bad.Store(false)
	got.check(t)
	t.Logf("%d answers in %v; %d packets lost, %d late, %d doubled; sent again: %d segments by the clients, %d by the server",
		clients*each, time.Since(began).Round(time.Millisecond), lost.Load(), late.Load(), doubled.Load(),
		resent(t, w.B.Host), resent(t, w.A.Host))
	empty(t, ag)
	await(t, "each is counted once", func() (any, bool) {
		st := target(ag)
		return st, st.AdmittedTotal == clients*each && st.FinishedTotal == clients*each
	})
	st, err := s.Stats()
	if err != nil || st.Served != clients*each || st.MaxInside > 5 {
		t.Errorf("the server: %+v, %v; want %d served and at most 5 inside", st, err, clients*each)
	}
	if target(ag).HeldTotal == 0 || lost.Load() < 100 {
		t.Errorf("held %d, lost %d: that tests nothing", target(ag).HeldTotal, lost.Load())
	}
}

// The packet that completes a handshake brings the request, on a server that
// wants it so: that is too late to hold it, but it is counted.
func TestRequestCompletesHandshake(t *testing.T) {
	srv, cli, to := hosts(t)
	server := keep(t, srv, "tcp", ":8080")
	raw, err := server.ln.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	ctl := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 5) })
	if err := errors.Join(ctl, err); err != nil {
		t.Fatal(err)
	}
	p := &pair{T: t, srv: srv, cli: cli, to: to, server: server, agent: startHolding(t, srv, requests(1))}
	p.first = dial(t, cli, to)
	time.Sleep(50 * time.Millisecond)
	if server.held() > 0 {
		t.Fatal("accepted without data: that tests nothing")
	}
	p.say(p.first, "one")
	server.await(t, 1)
	awaitUnits(t, 1, 0)
	p.second = dial(t, cli, to)
	p.say(p.second, "early")
	server.await(t, 2)
	awaitUnits(t, 2, 0)
	p.hears(server.conns[1], "early")
	p.say(server.conns[1], "answer")
	p.hears(p.second, "answer")
	awaitUnits(t, 1, 0)
	p.say(p.second, "two")
	awaitUnits(t, 1, 1)
	p.answer()
	p.finish()
}

// The kernel drops all that is held when somebody takes a chain of the packet
// filter away. TCP sends it again, and it keeps its place.
func TestRequestsWhilePacketFilterChanges(t *testing.T) {
	srv, cli, to := hosts(t)
	s := serve(t, srv, backend.Spec{Protocol: "http", Service: work})
	ag := startHolding(t, srv, requests(10))
	neverDrifts(t, ag)
	a := askers{n: 60, from: cli, to: to}
	conns := a.dial(t)
	done := make(chan answers, 1)
	go func() { done <- a.drive(conns, 2500*time.Millisecond) }()
	changes := 0
	for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); changes++ {
		if err := srv.Do(foreignChain); err != nil {
			t.Fatal(err)
		}
		time.Sleep(600 * time.Millisecond)
	}
	got := <-done
	got.check(t)
	got.log(t, fmt.Sprint("chain added and deleted ", changes, " times"))
	empty(t, ag)
	st, err := s.Stats()
	if err != nil || st.MaxInside > 10 || target(ag).AdmittedTotal != st.Served {
		t.Errorf("the server: %+v, %v; want at most 10 inside and %d served", st, err, target(ag).AdmittedTotal)
	}
	if n := resent(t, cli); n == 0 {
		t.Error("nothing had to be sent again")
	}
}

// foreignChain adds a chain of somebody else's to the packet filter, and
// deletes it.
func foreignChain() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "foreign"})
	c.AddChain(&nftables.Chain{
		Table: table, Name: "input", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter,
	})
	if err := c.Flush(); err != nil {
		return err
	}
	c.DelTable(table)
	return c.Flush()
}

// Clients that come, ask and go, every fifth while it waits: by a reset or by
// closing.
func TestRequestChurn(t *testing.T) { inParties(t, testRequestChurn) }

func testRequestChurn(t *testing.T, set func(*config.Rule)) *agent.Agent {
	t.Helper()
	srv, cli, to := hosts(t)
	s := serve(t, srv, contended("http"))
	ag := startHolding(t, srv, both(requests(10), set))
	neverDrifts(t, ag)
	var answered, gaveUp atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(2 * time.Second)
	for range 100 {
		all.Go(func() {
			for time.Now().Before(end) {
				if err := visit(t, cli, to, &answered, &gaveUp); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	empty(t, ag)
	st, err := s.Stats()
	if err != nil || st.MaxInside > 10 || st.Inside > 0 {
		t.Errorf("the server: %+v, %v; want at most 10 inside, and none now", st, err)
	}
	await(t, "all is over", func() (any, bool) {
		st := target(ag)
		return st, st.AdmittedTotal == st.FinishedTotal && st.Connections == 0
	})
	t.Logf("%d answered, %d given up; served %d", answered.Load(), gaveUp.Load(), st.Served)
	if gaveUp.Load() < 50 || answered.Load() < 300 {
		t.Error("that tests nothing")
	}
	return ag
}

// visit opens a connection and asks up to three times.
func visit(t *testing.T, from *lab.Host, to netip.AddrPort, answered, gaveUp *atomic.Int64) error {
	c, err := from.Dial(t.Context(), "tcp", to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	in := bufio.NewReader(c)
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	for range 3 {
		if rand.IntN(5) == 0 {
			gaveUp.Add(1)
			_, err := io.WriteString(c, aGet)
			time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
			if rand.IntN(2) == 0 {
				err = errors.Join(err, c.(*net.TCPConn).SetLinger(0))
			}
			return err
		}
		if err := (askers{}).once(c, in); err != nil {
			return err
		}
		answered.Add(1)
	}
	return nil
}

const perRequest = `
rules:
  - name: shop
    port: 8080
    unit: request
    limit: {algorithm: fixed, initial: 10}
    hold: {max_wait: 20s}
`

// An agent that is killed, or stopped, keeps nobody waiting once its lease is
// over. With the next one, or when it goes on, the limit holds again within a
// second.
func TestRequestsWithoutAgent(t *testing.T) {
	program := buildAgent(t)
	for _, test := range []struct {
		name string
		out  syscall.Signal
	}{{"killed", syscall.SIGKILL}, {"stopped", syscall.SIGSTOP}} {
		t.Run(test.name, func(t *testing.T) {
			srv, cli, to := hosts(t)
			s := serve(t, srv, contended("http"))
			p := runAgent(t, program, srv, perRequest)
			a := askers{n: 40, from: cli, to: to}
			conns := a.dial(t)
			done := make(chan answers, 1)
			go func() { done <- a.drive(conns, 5*time.Second) }()

			awaitUnits(t, 10, 30)
			time.Sleep(500 * time.Millisecond)
			if most := mostInside(t, s); most != 10 {
				t.Errorf("%d inside at once, want 10", most)
			}
			p.signal(t, test.out)
			out := time.Now()
			await(t, "nobody waits", func() (any, bool) {
				in, waiting := kernelUnits(t)
				return [2]int{in, waiting}, waiting == 0
			})
			t.Logf("nobody waits %v after it was %s, at a lease of %v", time.Since(out).Round(time.Millisecond), test.name, lease)
			// What is held comes in when its client sends it again: it has waited
			// for so long before, or half as long.
			if test.out == syscall.SIGSTOP && time.Since(out) > 2*lease+slack {
				t.Error("that is too long")
			}
			time.Sleep(time.Until(out.Add(2 * lease)))
			if in, waiting := kernelUnits(t); in < 11 || waiting > 0 {
				t.Errorf("%d in flight and %d waiting, want the gate open", in, waiting)
			}

			if test.out == syscall.SIGSTOP {
				p.signal(t, syscall.SIGCONT)
			} else {
				_ = p.cmd.Wait()
				p = runAgent(t, program, srv, perRequest)
			}
			back := time.Now()
			await(t, "the limit holds", func() (any, bool) {
				in, waiting := kernelUnits(t)
				return [2]int{in, waiting}, in == 10 && waiting == 30
			})
			t.Logf("the limit holds again %v after the agent is back", time.Since(back).Round(time.Millisecond))
			if time.Since(back) > time.Second {
				t.Error("that is too long")
			}
			mostInside(t, s)
			time.Sleep(500 * time.Millisecond)
			if most := mostInside(t, s); most != 10 {
				t.Errorf("then %d inside at once, want 10", most)
			}
			got := <-done
			got.check(t)
			got.log(t, "all of the time")
			awaitUnits(t, 0, 0)
			await(t, "each is counted once", func() (any, bool) {
				counted, err := s.Stats()
				st := p.target(t)
				return st, err == nil && st.AdmittedTotal == counted.Served && st.FinishedTotal == counted.Served
			})
		})
	}
}
