package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/status"
)

// childVerb is the first argument of a process that is an agent.
const childVerb = "e2e-agent"

// childSpec is its second one.
type childSpec struct {
	State    string
	Limit    int
	Requests bool // are limited, and wait; else connections, which are refused
	Cgroup   cgroupLayout
}

// cgroupLayout says which cgroup2 hierarchy the process sees.
type cgroupLayout string

const (
	cgroupAsIs    cgroupLayout = ""        // that of the machine
	cgroupUnified cgroupLayout = "unified" // on /sys/fs/cgroup/unified, beside nothing else
	cgroupNone    cgroupLayout = "none"
)

// childReply is what the process says on its standard output, once when it has
// started and once for each line that it gets.
type childReply struct {
	Error  string
	Status status.Status
}

// childMain is the process: it protects the port of these tests in its own
// network namespace, and leaves everything attached when its input ends.
func childMain(args []string) (handled bool, code int) {
	if len(args) != 2 || args[0] != childVerb {
		return false, 0
	}
	out := json.NewEncoder(os.Stdout)
	a, err := childStart([]byte(args[1]))
	if err != nil {
		_ = out.Encode(childReply{Error: err.Error()})
		return true, 1
	}
	for in := bufio.NewScanner(os.Stdin); ; {
		if err := out.Encode(childReply{Status: a.Status()}); err != nil || !in.Scan() {
			return true, 0
		}
	}
}

func childStart(text []byte) (*agent.Agent, error) {
	var spec childSpec
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, err
	}
	if err := spec.Cgroup.mount(); err != nil {
		return nil, fmt.Errorf("make the cgroup layout %q: %w", spec.Cgroup, err)
	}
	set := fixed
	if spec.Requests {
		set = requests
	}
	cfg := configFor(&lab.Host{}, port, set(spec.Limit))
	cfg.State = spec.State
	if spec.Requests { // as startHolding does
		cfg.Window = 20 * time.Millisecond
	}
	cfg.Rules[0].Scope = config.Scope{}
	return agent.Start(cfg, "test", slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

// mount makes the layout in the mount namespace of the process, which must be
// one of its own.
func (l cgroupLayout) mount() error {
	if l == cgroupAsIs {
		return nil
	}
	// With everything that is mounted below it.
	if err := unix.Unmount("/sys/fs/cgroup", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	if l == cgroupNone {
		return nil
	}
	const dir = "/sys/fs/cgroup/unified"
	if err := unix.Mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return unix.Mount("cgroup2", dir, "cgroup2", 0, "")
}

// child is such a process.
type child struct {
	cmd     *lab.Cmd
	stdin   io.WriteCloser
	replies *json.Decoder
	stderr  bytes.Buffer
}

// startChild starts an agent as a process on a host. Its first reply says
// whether that went well.
func startChild(t *testing.T, h *lab.Host, spec childSpec) (*child, childReply) {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: h.Command(t.Context(), "/proc/self/exe", childVerb, string(text))}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	c.cmd.Stderr = &c.stderr
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		c.stdin, err = c.cmd.StdinPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatalf("start an agent process: %v", err)
	}
	c.replies = json.NewDecoder(out)
	return c, c.reply(t)
}

func (c *child) reply(t *testing.T) childReply {
	t.Helper()
	var r childReply
	if err := c.replies.Decode(&r); err != nil {
		err = errors.Join(err, c.cmd.Process.Kill(), c.cmd.Wait())
		t.Fatalf("the agent process: %v; it said: %s", err, &c.stderr)
	}
	return r
}

// target asks the process what it reports of its only target.
func (c *child) target(t *testing.T) status.Target {
	t.Helper()
	if _, err := io.WriteString(c.stdin, "\n"); err != nil {
		t.Fatalf("ask the agent process: %v", err)
	}
	return c.reply(t).Status.Targets[0]
}

// kill ends the process without a warning.
func (c *child) kill(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait() // says that it was killed
}
