package backend

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
)

// Child runs a backend as a process of its own, controlled through its
// standard input and output: it prints one line when it listens, answers each
// line "stats" with its Stats as JSON and each "reset" after ResetPeak, and
// ends when the input does, so that it does not outlive who started it.
func Child(spec Spec, in io.Reader, out io.Writer) error {
	server, err := New(spec)
	if err != nil {
		return err
	}
	var listeners []net.Listener
	for _, address := range spec.Listen {
		ln, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		defer ln.Close()
		listeners = append(listeners, ln)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	served := make(chan error, 1)
	go func() {
		served <- server.Serve(ctx, listeners...)
		cancel()
	}()
	commands := make(chan error, 1)
	go func() { commands <- server.obey(in, out) }()

	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	select {
	case err := <-commands:
		cancel()
		<-served
		return err
	case err := <-served:
		return err
	}
}

func (s *Server) obey(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		switch lines.Text() {
		case "stats":
			if err := json.NewEncoder(out).Encode(s.Stats()); err != nil {
				return err
			}
		case "reset":
			s.ResetPeak()
			if _, err := fmt.Fprintln(out, "ok"); err != nil {
				return err
			}
		default:
			return fmt.Errorf("unknown command %q", lines.Text())
		}
	}
	return lines.Err()
}
