package api

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// crowd is a listener with a bound on its connections. When all places are taken
// and one more comes, the one that is least missed is closed: where nothing has
// moved for the longest, those first that ask nothing at the moment. So whoever
// has an answer within milliseconds gets in, whatever the others are at.
type crowd struct {
	*net.TCPListener
	places  chan struct{} // a token for each connection whose server has not let go of it
	closing chan struct{}
	close   func() error

	mu     sync.Mutex
	guests map[*guest]struct{} // those that have not been sent away
}

func newCrowd(l *net.TCPListener, places int) *crowd {
	c := &crowd{
		TCPListener: l,
		places:      make(chan struct{}, places),
		closing:     make(chan struct{}),
		guests:      make(map[*guest]struct{}),
	}
	c.close = sync.OnceValue(func() error {
		close(c.closing)
		return l.Close()
	})
	return c
}

// Close implements [net.Listener].
func (c *crowd) Close() error { return c.close() }

// Accept implements [net.Listener]. Who is sent away gives up the place when the
// server has let go of the connection: that of a handler which computes is not
// taken by one more.
func (c *crowd) Accept() (net.Conn, error) {
	conn, err := c.AcceptTCP()
	if err != nil {
		return nil, err
	}
	select {
	case c.places <- struct{}{}:
	default:
		c.sendAway()
		select {
		case c.places <- struct{}{}:
		case <-c.closing:
			conn.Close()
			return nil, net.ErrClosed
		}
	}
	g := &guest{TCPConn: conn, crowd: c, moved: time.Now()}
	g.leave = sync.OnceFunc(func() {
		c.forget(g)
		<-c.places
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.guests[g] = struct{}{}
	return g, nil
}

// sendAway closes the connection that is least missed, if one is left that is not
// closed already.
func (c *crowd) sendAway() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var least *guest
	for g := range c.guests {
		if least == nil || g.missedLess(least) {
			least = g
		}
	}
	if least != nil {
		delete(c.guests, least)
		least.TCPConn.Close()
	}
}

func (c *crowd) forget(g *guest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.guests, g)
}

// note is the server's ConnState.
func (c *crowd) note(conn net.Conn, state http.ConnState) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if g, ok := conn.(*guest); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		g.asks, g.moved = state == http.StateActive, time.Now()
	}
}

// guest is a connection of a crowd.
type guest struct {
	*net.TCPConn
	crowd *crowd
	leave func()

	// With crowd.mu held:
	asks  bool      // a request is being answered
	moved time.Time // when that changed, or some of an answer was taken, last
}

// missedLess says who of two is to be sent away rather.
func (g *guest) missedLess(than *guest) bool {
	if g.asks != than.asks {
		return than.asks
	}
	return g.moved.Before(than.moved)
}

// Write implements [net.Conn].
func (g *guest) Write(b []byte) (int, error) {
	n, err := g.TCPConn.Write(b)
	g.crowd.mu.Lock()
	defer g.crowd.mu.Unlock()
	g.moved = time.Now()
	return n, err
}

// Close implements [net.Conn].
func (g *guest) Close() error {
	defer g.leave()
	return g.TCPConn.Close()
}
