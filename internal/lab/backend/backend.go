// Package backend is a server with known service times, to be protected in
// tests and in the demo: a pool of workers that each take a fixed time for a
// request, behind HTTP, HTTPS, or a line protocol in which the server speaks
// first.
package backend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Spec describes a backend.
type Spec struct {
	// Protocol is "http", "https" or "line".
	Protocol string `json:"protocol"`

	// Listen holds the addresses, for example ":8080" for both families.
	Listen []string `json:"listen"`

	// Workers is how many requests are worked on at once; the others wait in
	// order of arrival. 0 means any number.
	Workers int `json:"workers"`

	// Service is how long a worker takes for a request.
	Service time.Duration `json:"service"`

	// Contention is how much longer a worker takes for each further Workers
	// requests that are inside, as a part of Service: with n inside, a request
	// takes Service * (1 + Contention * (n-Workers)/Workers) when n is above
	// Workers. It models threads that get in each other's way (caches, locks,
	// memory). 0 means none.
	Contention float64 `json:"contention"`

	// MaxSlowdown bounds the factor that Contention leads to; 0 means no bound.
	MaxSlowdown float64 `json:"max_slowdown"`

	// MaxConns is how many connections are accepted at once; the others wait
	// in the kernel's accept queue. 0 means any number.
	MaxConns int `json:"max_conns"`
}

// Validate says what is wrong with the spec.
func (s Spec) Validate() error {
	switch {
	case s.Protocol != "http" && s.Protocol != "https" && s.Protocol != "line":
		return fmt.Errorf("protocol %q: not http, https or line", s.Protocol)
	case len(s.Listen) == 0:
		return errors.New("no address to listen on")
	case s.Workers < 0 || s.MaxConns < 0 || s.Service < 0 || s.Contention < 0:
		return errors.New("workers, max_conns, service and contention are not negative")
	case s.Contention > 0 && s.Workers == 0:
		return errors.New("contention needs a number of workers")
	case s.MaxSlowdown != 0 && s.MaxSlowdown < 1:
		return errors.New("max_slowdown is 0 or at least 1")
	}
	return nil
}

// Stats is what a backend saw from the inside.
type Stats struct {
	Inside    int    `json:"inside"`     // requests waiting for a worker or worked on
	MaxInside int    `json:"max_inside"` // most at one moment since the last ResetPeak
	Served    uint64 `json:"served"`     // requests finished
	Conns     uint64 `json:"conns"`      // connections accepted
}

// Server runs a Spec.
type Server struct {
	spec    Spec
	workers chan time.Time // idle workers, by when they became idle; nil: any number
	conns   chan struct{}  // one place a connection; nil when any number may be open

	mu    sync.Mutex
	stats Stats
}

// New returns a server for the spec.
func New(spec Spec) (*Server, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	s := &Server{spec: spec}
	if spec.Workers > 0 {
		s.workers = make(chan time.Time, spec.Workers)
		for range spec.Workers {
			s.workers <- time.Time{}
		}
	}
	if spec.MaxConns > 0 {
		s.conns = make(chan struct{}, spec.MaxConns)
	}
	return s, nil
}

// Stats returns the state at this moment.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// ResetPeak begins a new measurement of MaxInside.
func (s *Server) ResetPeak() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.MaxInside = s.stats.Inside
}

// Serve answers connections from the listeners until ctx ends, then closes
// listeners and connections.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	for i, ln := range listeners {
		listeners[i] = &listener{Listener: ln, server: s, places: s.conns}
	}
	if s.spec.Protocol == "line" {
		return s.serveLines(ctx, listeners)
	}
	return s.serveHTTP(ctx, listeners)
}

// work is the pool: it returns when a worker has spent the service time on
// one request. d replaces the Service of the spec when it is not negative.
// Like most servers it does not notice a client that has gone away.
func (s *Server) work(d time.Duration) {
	if d < 0 {
		d = s.spec.Service
	}
	begin := time.Now()
	s.mu.Lock()
	s.stats.Inside++
	s.stats.MaxInside = max(s.stats.MaxInside, s.stats.Inside)
	s.mu.Unlock()

	if s.workers != nil {
		// A worker goes over from one waiting request to the next without a
		// gap: what a sleep takes too long is taken off the next, so that the
		// pool carries Workers/Service and not a little less.
		if idle := <-s.workers; idle.After(begin) {
			begin = idle
		}
	}
	end := begin.Add(time.Duration(float64(d) * s.slowdown(s.Stats().Inside)))
	time.Sleep(time.Until(end))
	if s.workers != nil {
		s.workers <- end
	}

	s.mu.Lock()
	s.stats.Inside--
	s.stats.Served++
	s.mu.Unlock()
}

// slowdown is the factor on the service time with n requests inside.
func (s *Server) slowdown(n int) float64 {
	if s.spec.Contention == 0 || n <= s.spec.Workers {
		return 1
	}
	f := 1 + s.spec.Contention*float64(n-s.spec.Workers)/float64(s.spec.Workers)
	if s.spec.MaxSlowdown > 0 {
		f = min(f, s.spec.MaxSlowdown)
	}
	return f
}

// listener counts connections and, with places, bounds how many are open.
type listener struct {
	net.Listener
	server *Server
	places chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	if l.places != nil {
		l.places <- struct{}{}
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		if l.places != nil {
			<-l.places
		}
		return nil, err
	}
	l.server.mu.Lock()
	l.server.stats.Conns++
	l.server.mu.Unlock()
	if l.places == nil {
		return conn, nil
	}
	return &boundedConn{Conn: conn, release: sync.OnceFunc(func() { <-l.places })}, nil
}

type boundedConn struct {
	net.Conn
	release func()
}

func (c *boundedConn) Close() error {
	err := c.Conn.Close()
	c.release()
	return err
}
