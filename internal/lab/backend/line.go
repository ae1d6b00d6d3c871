package backend

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync"
)

// Banner is what the line protocol's server says first.
const Banner = "backend ready\n"

// serveLines runs the line protocol: the server greets with Banner, then
// answers each line L with "ok L" after one turn of work. A line "quit" ends
// the connection.
func (s *Server) serveLines(ctx context.Context, listeners []net.Listener) error {
	var (
		mu    sync.Mutex
		conns = map[net.Conn]bool{}
		group sync.WaitGroup
	)
	closeAll := func() {
		for _, ln := range listeners {
			_ = ln.Close()
		}
		mu.Lock()
		defer mu.Unlock()
		for conn := range conns {
			_ = conn.Close()
		}
	}
	stop := context.AfterFunc(ctx, closeAll)
	defer group.Wait()
	defer closeAll()
	defer stop()

	return serveAll(ctx, listeners, func(ln net.Listener) error {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return fmt.Errorf("accepting: %w", err)
			}
			mu.Lock()
			conns[conn] = true
			mu.Unlock()
			group.Go(func() {
				s.talk(conn)
				_ = conn.Close()
				mu.Lock()
				delete(conns, conn)
				mu.Unlock()
			})
		}
	})
}

func (s *Server) talk(conn net.Conn) {
	if _, err := conn.Write([]byte(Banner)); err != nil {
		return
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if lines.Text() == "quit" {
			return
		}
		s.work(-1)
		if _, err := fmt.Fprintf(conn, "ok %s\n", lines.Text()); err != nil {
			return
		}
	}
}
