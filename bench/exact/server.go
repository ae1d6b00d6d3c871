package main

import (
	"fmt"
	"net"
	"sync"
	"time"

	"headgate/internal/lab"
)

// server answers one byte of each connection after a time, and counts those that
// are open.
type server struct {
	ln   net.Listener
	done sync.WaitGroup

	mu             sync.Mutex
	after          time.Duration
	open           map[net.Conn]bool
	peak, accepted int
}

func serve(h *lab.Host, port int) (*server, error) {
	ln, err := h.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, err
	}
	s := &server{ln: ln, open: map[net.Conn]bool{}}
	s.done.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			after := s.begin(c)
			s.done.Go(func() {
				s.answer(c, after)
				s.end(c)
			})
		}
	})
	return s, nil
}

func (s *server) begin(c net.Conn) (after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[c] = true
	s.accepted++
	s.peak = max(s.peak, len(s.open))
	return s.after
}

func (s *server) end(c net.Conn) {
	_ = c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}

func (s *server) answer(c net.Conn, after time.Duration) {
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	b := make([]byte, 1)
	if _, err := c.Read(b); err != nil {
		return
	}
	time.Sleep(after)
	if _, err := c.Write([]byte("ok")); err != nil {
		return
	}
	_, _ = c.Read(b) // the client closes first
}

// reset begins a new measurement, with answers after a time from now on.
func (s *server) reset(after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after, s.peak, s.accepted = after, len(s.open), 0
}

// seen returns the most that were open at once and how many came, since reset,
// and how many are open.
func (s *server) seen() (peak, accepted, open int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peak, s.accepted, len(s.open)
}

func (s *server) stop() {
	_ = s.ln.Close()
	s.mu.Lock()
	for c := range s.open {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.done.Wait()
}
