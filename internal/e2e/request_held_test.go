package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
)

// pair is a limit of one request, and two connections to a server that answers
// when the test does: one has asked and is in service, the other waits.
type pair struct {
	*testing.T
	srv, cli *lab.Host
	to       netip.AddrPort
	agent    *agent.Agent
	server   *keeper
	first    *net.TCPConn
	second   *net.TCPConn
}

func newPair(t *testing.T, set func(*config.Rule)) *pair {
	t.Helper()
	return connectPair(t, set, func(p *pair) *net.TCPConn { return dial(t, p.cli, p.to) })
}

// connectPair is newPair with clients that connect in another way.
func connectPair(t *testing.T, set func(*config.Rule), connect func(*pair) *net.TCPConn) *pair {
	t.Helper()
	p := &pair{T: t}
	p.srv, p.cli, p.to = hosts(t)
	p.server = keep(t, p.srv, "tcp", ":8080")
	p.agent = startHolding(t, p.srv, func(r *config.Rule) {
		requests(1)(r)
		set(r)
	})
	p.first = connect(p)
	p.server.await(t, 1)
	p.say(p.first, "one")
	awaitUnits(t, 1, 0)
	p.second = connect(p)
	p.server.await(t, 2)
	p.say(p.second, "two")
	return p
}

func (p *pair) say(c net.Conn, text string) {
	p.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		p.Fatal(err)
	}
}

// hears checks what comes next on a connection.
func (p *pair) hears(c net.Conn, text string) {
	p.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	got := make([]byte, len(text))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != text {
		p.Fatalf("read %q, %v; want %q", got[:n], err, text)
	}
}

// ends checks that a connection ends with that error, and no data.
func (p *pair) ends(c net.Conn, want error) {
	p.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if n, err := c.Read(make([]byte, 100)); n > 0 || !errors.Is(err, want) {
		p.Errorf("read %d bytes, %v; want %v", n, err, want)
	}
}

// answer answers the first request, which ends it.
func (p *pair) answer() {
	p.Helper()
	p.hears(p.server.conns[0], "one")
	p.say(p.server.conns[0], "answer one")
	p.hears(p.first, "answer one")
}

// finish answers the second request, and checks that nobody is left.
func (p *pair) finish() {
	p.Helper()
	p.hears(p.server.conns[1], "two")
	awaitUnits(p.T, 1, 0)
	p.say(p.server.conns[1], "answer two")
	p.hears(p.second, "answer two")
	empty(p.T, p.agent)
}

// What may happen to a connection while a request on it waits.
func TestRequestWaits(t *testing.T) {
	tests := map[string]func(*pair){
		"for its turn": func(p *pair) {
			p.answer()
			p.finish()
		},
		"client half-closes": func(p *pair) {
			if err := p.second.CloseWrite(); err != nil {
				p.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
			awaitUnits(p.T, 1, 1)
			p.answer()
			p.finish()
			p.ends(p.server.conns[1], io.EOF)
		},
		// A FIN may be a half-close: the request is worked on.
		"client closes": func(p *pair) {
			p.second.Close()
			time.Sleep(50 * time.Millisecond)
			awaitUnits(p.T, 1, 1)
			p.answer()
			p.hears(p.server.conns[1], "two")
			awaitUnits(p.T, 1, 0)
			p.server.close(2)
			empty(p.T, p.agent)
		},
		"client resets": func(p *pair) {
			reset(p.T, p.second)
			awaitUnits(p.T, 1, 0)
			p.ends(p.server.conns[1], syscall.ECONNRESET)
			p.answer()
			empty(p.T, p.agent)
		},
		// The server does not know that there is a request.
		"server closes": func(p *pair) {
			p.server.conns[1].Close()
			awaitUnits(p.T, 1, 0)
			p.ends(p.second, io.EOF)
			p.answer()
			empty(p.T, p.agent)
		},
		"server process dies": func(p *pair) {
			reset(p.T, p.server.conns[1].(*net.TCPConn))
			awaitUnits(p.T, 1, 0)
			p.ends(p.second, syscall.ECONNRESET)
			p.answer()
			empty(p.T, p.agent)
		},
		// The server works on, whether its client is there or not.
		"other client resets": func(p *pair) {
			reset(p.T, p.first)
			time.Sleep(100 * time.Millisecond)
			awaitUnits(p.T, 1, 1)
			p.server.conns[0].Close()
			p.finish()
		},
		"other client closes": func(p *pair) {
			p.first.Close()
			time.Sleep(100 * time.Millisecond)
			awaitUnits(p.T, 1, 1)
			p.server.conns[0].Close()
			p.finish()
		},
		"client goes on sending": func(p *pair) {
			want := ""
			for i := range 10 {
				s := strings.Repeat(fmt.Sprint(i), 2000)
				p.say(p.second, s)
				want += s
				time.Sleep(2 * time.Millisecond)
			}
			awaitUnits(p.T, 1, 1)
			p.answer()
			p.hears(p.server.conns[1], "two"+want)
			awaitUnits(p.T, 1, 0)
			p.say(p.server.conns[1], "answer two")
			p.hears(p.second, "answer two")
			empty(p.T, p.agent)
			if st := target(p.agent); st.HeldTotal != 1 || st.AdmittedTotal != 2 {
				p.Errorf("held %d, admitted %d; want 1 and 2", st.HeldTotal, st.AdmittedTotal)
			}
		},
		"client retransmits": func(p *pair) {
			time.Sleep(1500 * time.Millisecond)
			if n := retransmits(p.T, p.second); n == 0 {
				p.Error("nothing was sent again")
			} else {
				p.Logf("sent again %d times", n)
			}
			p.answer()
			p.finish()
			if st := target(p.agent); st.HeldTotal != 1 || st.AdmittedTotal != 2 || st.FinishedTotal != 2 {
				p.Errorf("held %d, admitted %d, finished %d; want 1, 2 and 2", st.HeldTotal, st.AdmittedTotal, st.FinishedTotal)
			}
		},
		"probes to see who is alive": func(p *pair) {
			idle := dial(p.T, p.cli, p.to)
			p.server.await(p.T, 3)
			for _, c := range []*net.TCPConn{idle, p.server.conns[2].(*net.TCPConn)} {
				err := c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 5})
				if err != nil {
					p.Fatal(err)
				}
			}
			time.Sleep(1500 * time.Millisecond)
			awaitUnits(p.T, 1, 1)
			p.answer()
			p.finish()
			if st := target(p.agent); st.AdmittedTotal != 2 {
				p.Errorf("admitted %d, want 2", st.AdmittedTotal)
			}
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, func(*config.Rule) {})
			awaitUnits(t, 1, 1)
			test(p)
		})
	}
}

// A request that has waited for as long as the rule says is refused: its client
// sees a reset, and the server has no connection any more.
func TestRequestMaxWait(t *testing.T) {
	for name, maxWait := range map[string]time.Duration{"300 ms": 300 * time.Millisecond, "no hold": 0} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			p := newPair(t, func(r *config.Rule) { r.Hold.MaxWait = maxWait })
			asked := time.Now()
			p.ends(p.second, syscall.ECONNRESET)
			now := time.Now()
			if now.Sub(began) < maxWait || now.Sub(asked) > maxWait+slack {
				t.Errorf("reset after %v, want %v", now.Sub(asked), maxWait)
			}
			p.ends(p.server.conns[1], syscall.ECONNABORTED)
			if n := connections(t, p.srv, port); n != 1 {
				t.Errorf("the server has %d connections, want 1", n)
			}
			awaitUnits(t, 1, 0)
			p.answer()
			empty(t, p.agent)
			await(t, "it is counted", func() (any, bool) {
				st := target(p.agent)
				return st, rejectedInAll(st) == 1 && st.AdmittedTotal == 1 && st.FinishedTotal == 1
			})
		})
	}
}

// Connections that are older than the agent are looked after like others, from
// their next request on, and so are those that it knew by another unit.
func TestRequestsOnOlderConnections(t *testing.T) {
	srv, cli, to := hosts(t)
	server := keep(t, srv, "tcp", ":8080")
	p := &pair{T: t, srv: srv, cli: cli, to: to, server: server}
	p.first, p.second = dial(t, cli, to), dial(t, cli, to)
	server.await(t, 2)
	older := dial(t, cli, to)
	server.await(t, 3)
	p.say(older, "zero") // a request that is in service
	p.hears(server.conns[2], "zero")

	check := func() {
		t.Helper()
		awaitUnits(t, 0, 0)
		p.say(server.conns[2], "answer")
		awaitUnits(t, 0, 0)
		p.say(p.first, "one")
		awaitUnits(t, 1, 0)
		p.say(p.second, "two")
		awaitUnits(t, 1, 1)
		p.answer()
		p.finish()
	}
	for _, unit := range []struct {
		set   func(*config.Rule)
		check func()
	}{
		{requests(1), check},
		{fixed(100), func() { awaitUnits(t, 3, 0) }},
		{requests(1), check},
	} {
		p.agent = begin(t, srv, unit.set)
		unit.check()
		if err := p.agent.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	startHolding(t, srv, requests(1)) // and takes everything away
	server.closeAll()
	awaitUnits(t, 0, 0)
}

// retransmits is how many segments a socket has sent again.
func retransmits(t *testing.T, c *net.TCPConn) (n int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	ctl := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err := errors.Join(ctl, err); err != nil {
		t.Fatal(err)
	}
	return int(info.Total_retrans)
}

// A server that begins to listen is known a moment later. What is asked until
// then holds no slot for ever.
func TestRequestsToNewServer(t *testing.T) {
	srv, cli, to := hosts(t)
	ag := startAgent(t, srv, port, requests(1))
	server := keep(t, srv, "tcp", ":8080")
	p := &pair{T: t, srv: srv, cli: cli, to: to, agent: ag, server: server}
	p.first = dial(t, cli, to)
	p.say(p.first, "one")
	server.await(t, 1)
	p.answer()
	awaitUnits(t, 0, 0)
	await(t, "the limit holds", func() (any, bool) {
		p.say(p.first, "one")
		time.Sleep(10 * time.Millisecond)
		in, _ := kernelUnits(t)
		p.answer()
		return in, in == 1
	})
	awaitUnits(t, 0, 0)
}
