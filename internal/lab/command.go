package lab

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Cmd is a command that runs inside a host. Of exec.Cmd, set the fields and
// use the pipes as ever; Cmd's own methods start it in the right place.
type Cmd struct {
	*exec.Cmd
	Cgroup *Cgroup // where it starts; the host's by default

	host *Host
	once sync.Once
	err  error
}

// Command returns a command that will run in the host's namespace and cgroup.
// It is killed when ctx ends, and at the latest when the lab is closed,
// together with every process that it started.
func (h *Host) Command(ctx context.Context, name string, args ...string) *Cmd {
	c := &Cmd{Cmd: exec.CommandContext(ctx, name, args...), Cgroup: h.Cgroup, host: h}
	// A process that the command leaves behind with its output open must not
	// keep Wait from returning.
	c.WaitDelay = time.Second
	return c
}

// SubCgroup makes a cgroup below the host's, for a command that is to be
// apart from the others. It is removed with the lab.
func (h *Host) SubCgroup(name string) (*Cgroup, error) {
	return h.Cgroup.child(name)
}

// Start starts the command: it is in its cgroup from its first instruction,
// and so is every socket that it opens.
func (c *Cmd) Start() error {
	dir, err := unix.Open(c.Cgroup.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", c.Cgroup.Path, err)
	}
	defer unix.Close(dir)
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	// A group of its own, so that Ctrl-C in a terminal ends this process, which
	// then ends the others in order.
	c.SysProcAttr.Setpgid = true
	c.SysProcAttr.UseCgroupFD = true
	c.SysProcAttr.CgroupFD = dir
	return c.host.Do(func() error { return c.host.lab.register(c) })
}

// Wait waits for the command to end. It may be called more than once, and at
// the same time as Close.
func (c *Cmd) Wait() error {
	c.once.Do(func() { c.err = c.Cmd.Wait() })
	return c.err
}

// Run starts the command and waits for its end.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the command and returns its standard output.
func (c *Cmd) Output() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout = &out
	err := c.Run()
	return out.Bytes(), err
}

// CombinedOutput runs the command and returns all its output.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}
