package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"

	"headgate/internal/lab/backend"
)

// ServerVerb is the first argument of a process that is a backend. StartServer
// runs the calling program with it; Main knows it, and any other program has
// to call ServerMain.
const ServerVerb = "lab-server"

// ServerMain runs a backend when the arguments (without the program's name)
// are those that StartServer gives to the processes that it starts.
func ServerMain(args []string) (handled bool, code int) {
	if len(args) != 2 || args[0] != ServerVerb {
		return false, 0
	}
	var spec backend.Spec
	err := json.Unmarshal([]byte(args[1]), &spec)
	if err == nil {
		err = backend.Child(spec, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return true, 1
	}
	return true, 0
}

// Server is a backend that runs as a process on a host.
type Server struct {
	cmd *Cmd

	mu      sync.Mutex // one exchange at a time
	control io.WriteCloser
	replies *bufio.Reader
}

// StartServer starts a backend in the host's namespace and cgroup and returns
// when it listens. It ends with Stop, with ctx, or with the lab.
func (h *Host) StartServer(ctx context.Context, spec backend.Spec) (*Server, error) {
	return h.StartServerIn(ctx, h.Cgroup, spec)
}

// StartServerIn is StartServer with a cgroup of the caller's choice.
func (h *Host) StartServerIn(ctx context.Context, group *Cgroup, spec backend.Spec) (*Server, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	cmd := h.Command(ctx, "/proc/self/exe", ServerVerb, string(text))
	cmd.Cgroup = group
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	control, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a backend on host %s: %w", h.Name, err)
	}
	s := &Server{cmd: cmd, control: control, replies: bufio.NewReader(out)}
	if line, err := s.replies.ReadString('\n'); err != nil || line != "ready\n" {
		// Only after Wait is all of the complaint there.
		err := errors.Join(cmd.Process.Kill(), cmd.Wait())
		return nil, fmt.Errorf("backend on host %s did not start: %w: %s", h.Name, err,
			strings.TrimSpace(line+complaint.String()))
	}
	return s, nil
}

// PID returns the process id of the server.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Stats asks the server what it saw. That takes no connection.
func (s *Server) Stats() (backend.Stats, error) {
	var stats backend.Stats
	reply, err := s.ask("stats")
	if err == nil {
		err = json.Unmarshal(reply, &stats)
	}
	return stats, err
}

// ResetPeak begins a new measurement of the server's MaxInside.
func (s *Server) ResetPeak() error {
	_, err := s.ask("reset")
	return err
}

func (s *Server) ask(command string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := fmt.Fprintln(s.control, command); err != nil {
		return nil, fmt.Errorf("asking the backend for %s: %w", command, err)
	}
	reply, err := s.replies.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("the backend's reply to %s: %w", command, err)
	}
	return reply, nil
}

// Stop ends the server and waits for its end.
func (s *Server) Stop() error {
	err := s.control.Close()
	if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	waited := s.cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(waited, &exit) && !exit.Exited() {
		waited = nil // killed, which is an end too
	}
	return errors.Join(err, waited)
}
