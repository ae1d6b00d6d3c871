package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/loader"
	"headgate/pkg/status"
)

// programVariable names the program to test, where it cannot be built.
const programVariable = "HEADGATE_TEST_PROGRAM"

// buildAgent builds the program as it is installed, for every user.
func buildAgent(t *testing.T) string {
	t.Helper()
	if path := os.Getenv(programVariable); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "headgate")
	for _, dir := range []string{filepath.Dir(path), filepath.Dir(filepath.Dir(path))} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "headgate/cmd/agent").CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	return path
}

// agentProcess is headgate run in a process of its own, in the network
// namespace of a host.
type agentProcess struct {
	ctx     context.Context
	program string
	host    *lab.Host
	cmd     *lab.Cmd
	log     bytes.Buffer // complete after the end
}

// runAgent starts headgate run with a configuration, and returns when it says
// that it protects.
func runAgent(t *testing.T, program string, h *lab.Host, yaml string, flags ...string) *agentProcess {
	t.Helper()
	p := launch(t, program, h, yaml, flags...)
	p.await(t)
	return p
}

// await waits until the agent says that it protects.
func (p *agentProcess) await(t *testing.T) {
	t.Helper()
	await(t, "the agent answers", func() (any, bool) {
		out, err := p.ask("status")
		return out, err == nil
	})
}

// launch starts headgate run with a configuration.
func launch(t *testing.T, program string, h *lab.Host, yaml string, flags ...string) *agentProcess {
	t.Helper()
	file := filepath.Join(t.TempDir(), "headgate.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"run", "-c", file, "--state", stateDir(), "--lease", lease.String()}, flags...)
	// Not of the test's context, which ends before the clean-up that asks it.
	return startProcess(t, program, h.Command(context.WithoutCancel(t.Context()), program, args...), h)
}

// startProcess starts a command that becomes an agent.
func startProcess(t *testing.T, program string, cmd *lab.Cmd, h *lab.Host) *agentProcess {
	t.Helper()
	p := &agentProcess{ctx: t.Context(), program: program, host: h, cmd: cmd}
	p.cmd.Stderr = &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start the agent: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			p.dump(t)
		}
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		if t.Failed() {
			t.Logf("log of agent %d:\n%s", p.cmd.Process.Pid, p.log.String())
		}
		if _, err := agent.CleanUp(stateDir(), slog.New(slog.DiscardHandler)); err != nil && !errors.Is(err, loader.ErrInUse) {
			t.Errorf("clean up: %v", err)
		}
	})
	return p
}

// dump has a process that still runs log what it is doing, and says where the
// kernel has its threads: why one hangs cannot be asked later.
func (p *agentProcess) dump(t *testing.T) {
	t.Helper()
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stack", p.cmd.Process.Pid))
	for _, thread := range threads {
		if stack, err := os.ReadFile(thread); err == nil {
			t.Logf("%s:\n%s", thread, stack)
		}
	}
	if p.cmd.Process.Signal(syscall.SIGQUIT) == nil {
		time.Sleep(time.Second) // it ends by itself when it has written all of it
	}
}

// ask runs another verb beside the agent and returns what it prints.
func (p *agentProcess) ask(args ...string) (string, error) {
	var out, complaint bytes.Buffer
	cmd := p.host.Command(p.ctx, p.program, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return complaint.String(), err
	}
	return out.String(), nil
}

// status is what headgate status shows.
func (p *agentProcess) status(t *testing.T) status.Status {
	t.Helper()
	text, err := p.ask("status", "-o", "json")
	if err != nil {
		t.Fatalf("status: %v: %s", err, text)
	}
	var st status.Status
	if err := json.Unmarshal([]byte(text), &st); err != nil {
		t.Fatalf("status: %v in %s", err, text)
	}
	return st
}

// target is what headgate status shows of the only target.
func (p *agentProcess) target(t *testing.T) status.Target {
	t.Helper()
	st := p.status(t)
	if len(st.Targets) != 1 {
		t.Fatalf("%d targets, want 1: %+v", len(st.Targets), st)
	}
	return st.Targets[0]
}

// signal sends a signal.
func (p *agentProcess) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// stop asks the agent to end and returns its exit code.
func (p *agentProcess) stop(t *testing.T) int {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}
