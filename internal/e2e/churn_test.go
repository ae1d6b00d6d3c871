package e2e

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
)

const (
	churnWorkers = 16
	churnRounds  = 5
)

// churnEach is how many connections a worker makes in a round.
func churnEach() int {
	total := 100_000
	if lab.Slow() {
		total /= 5
	}
	return total / churnWorkers / churnRounds
}

// How a connection of the churn goes. The client says it by its first byte.
const (
	clientCloses   = 'a' + iota // the client asks, is answered, and closes
	clientResets                // the same, but closes by RST
	serverCloses                // the server answers and closes
	serverResets                // the same, but closes by RST
	clientAborts                // the client says nothing: RST at once, mostly before it is accepted
	clientIdles                 // the client says nothing and closes
	serverHolds                 // the server answers, and does no more until it is told to
	clientVanishes              // the server answers, and finds out that the client is gone
)

// What a worker leaves open at the end of a round, by how it leaves it.
const (
	keptOpen     = 2
	keptHalfOpen = 1 // the client has sent a FIN: CLOSE_WAIT
	keptReset    = 1 // the client has sent a RST, the server still works
	kept         = keptOpen + keptHalfOpen + keptReset
)

// A hundred thousand connections of all kinds leave nothing behind, and at five
// moments between them the count is the kernel's own.
func TestChurn(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	addrs := churnAddrs(t, srv)
	a := protect(t, srv, 1000)
	neverDrifts(t, a)
	s := startChurnServer(t, srv)
	before := opened(t, srv)
	begin := time.Now()
	for round := range churnRounds {
		var group sync.WaitGroup
		left := make([][]*net.TCPConn, churnWorkers)
		for w := range churnWorkers {
			group.Go(func() {
				r := rand.New(rand.NewPCG(uint64(round), uint64(w)))
				err := cli.Do(func() (err error) {
					left[w], err = churn(r, addrs[w], churnEach())
					return err
				})
				if err != nil {
					t.Errorf("round %d, worker %d: %v", round, w, err)
				}
			})
		}
		group.Wait()
		if t.Failed() {
			s.release()
			return
		}

		// Only what is kept is left once the server has closed all else.
		awaitInFlight(t, a, churnWorkers*kept)
		await(t, "the same number of connections in the kernel", func() (any, bool) {
			n := connections(t, srv, port)
			return n, n == churnWorkers*(kept-keptReset)
		})
		st := target(a)
		if st.AdmittedTotal-st.FinishedTotal != churnWorkers*kept {
			t.Errorf("round %d: %d admitted, %d finished, want a difference of %d",
				round, st.AdmittedTotal, st.FinishedTotal, churnWorkers*kept)
		}
		t.Logf("after %v: %d admitted, %d in flight", time.Since(begin), st.AdmittedTotal, st.InFlight)
		for _, conns := range left {
			for _, c := range conns {
				c.Close()
			}
		}
		s.release()
	}
	awaitInFlight(t, a, 0)
	st := target(a)
	// Where a machine is slow, the reset of a client that aborts may come before
	// what completes its handshake: then there was no connection.
	all := uint64(churnWorkers * churnEach() * churnRounds)
	made := opened(t, srv) - before
	if st.AdmittedTotal != made || st.FinishedTotal != made || st.RejectedTotal.Limit != 0 {
		t.Errorf("%d admitted, %d finished, %d rejected; want %d, %d, 0",
			st.AdmittedTotal, st.FinishedTotal, st.RejectedTotal.Limit, made, made)
	}
	if made != all && !lab.Slow() {
		t.Errorf("%d connections were made, want %d", made, all)
	}
	if n := connections(t, srv, port); n != 0 {
		t.Errorf("the kernel has %d connections when all are closed", n)
	}
}

// churnAddrs gives each worker an address of the server for itself, so that ports
// in TIME_WAIT do not run out.
func churnAddrs(t *testing.T, srv *lab.Host) []netip.AddrPort {
	t.Helper()
	addrs := make([]netip.AddrPort, churnWorkers)
	for i := range addrs {
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 83, 1, byte(100 + i)}), 24)
		if i%2 == 1 {
			prefix = netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("fd83:1::%d", 100+i)), 64)
		}
		if err := srv.AddAddr("cli", prefix); err != nil {
			t.Fatal(err)
		}
		addrs[i] = netip.AddrPortFrom(prefix.Addr(), port)
	}
	return addrs
}

// churn makes a worker's n connections of a round. The last few are left open,
// and all but those that are reset returned.
func churn(r *rand.Rand, to netip.AddrPort, n int) (left []*net.TCPConn, err error) {
	for i := range n {
		c, err := net.Dial("tcp", to.String())
		if err != nil {
			return left, err
		}
		conn := c.(*net.TCPConn)
		if i < n-kept {
			if err := live(conn, byte(clientCloses+r.IntN(serverHolds-clientCloses))); err != nil {
				return left, err
			}
			continue
		}
		if err := exchange(conn, serverHolds); err != nil {
			return left, err
		}
		switch i - (n - kept) {
		case 0:
			err = closeByReset(conn)
		case 1:
			err = conn.CloseWrite()
			left = append(left, conn)
		default:
			left = append(left, conn)
		}
		if err != nil {
			return left, err
		}
	}
	return left, nil
}

// live is the client's side of a whole connection.
func live(c *net.TCPConn, kind byte) error {
	switch kind {
	case clientAborts:
		return closeByReset(c)
	case clientIdles:
		return c.Close()
	}
	err := exchange(c, kind)
	switch {
	case kind == serverResets && errors.Is(err, syscall.ECONNRESET):
		// From another CPU, and before the answer.
	case err != nil:
		c.Close()
		return err
	case kind == clientResets:
		return closeByReset(c)
	case kind == serverCloses || kind == serverResets:
		_, _ = c.Read(make([]byte, 1)) // until the server has closed
	}
	return c.Close()
}

func exchange(c *net.TCPConn, kind byte) error {
	_ = c.SetDeadline(time.Now().Add(patience))
	b := []byte{kind}
	if _, err := c.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(c, b)
	return err
}

func closeByReset(c *net.TCPConn) error {
	if err := c.SetLinger(0); err != nil {
		return err
	}
	return c.Close()
}

// churnServer is the other side.
type churnServer struct {
	mu   sync.Mutex
	hold chan struct{} // closed to let go of what is held
}

func startChurnServer(t *testing.T, h *lab.Host) *churnServer {
	t.Helper()
	ln, err := h.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	s := &churnServer{hold: make(chan struct{})}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			group.Go(func() { s.serve(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		s.release()
		group.Wait()
	})
	return s
}

func (s *churnServer) serve(c *net.TCPConn) {
	defer c.Close()
	b := make([]byte, 1)
	if _, err := c.Read(b); err != nil {
		return
	}
	s.mu.Lock()
	hold := s.hold
	s.mu.Unlock()
	if b[0] == serverResets {
		_ = c.SetLinger(0)
	}
	if _, err := c.Write(b); err != nil {
		return
	}
	switch b[0] {
	case serverCloses, serverResets:
	case serverHolds:
		<-hold
	case clientVanishes:
		_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 1})
		_, _ = c.Read(b)
	default:
		_, _ = c.Read(b) // until the client has closed
	}
}

// release ends all connections that are held.
func (s *churnServer) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.hold)
	s.hold = make(chan struct{})
}
