package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

//go:embed guest.sh
var guestInit string

const (
	verdictPrefix = "headgate-verdict: "
	factsPrefix   = "headgate-facts: "
)

// memory of a guest, in MB: its file system is in there too.
const memory = 1024

// machine is what a guest is made of.
type machine struct {
	emulate string // the program
	options []string
	busybox string

	// programs of this machine that tests use and busybox has not, or not
	// well enough.
	programs []string
}

// machine returns what guests of the archive's architecture are made of.
func (a archive) machine(ctx context.Context) (machine, error) {
	var m machine
	switch a.arch {
	case "amd64":
		m.emulate = "qemu-system-x86_64"
		m.options = []string{"-M", "q35", "-append", "console=ttyS0 " + commandLine}
		m.programs = []string{"ip", "tc", "nft", "setpriv"}
	case "arm64":
		m.emulate = "qemu-system-aarch64"
		m.options = []string{"-M", "virt", "-append", "console=ttyAMA0 " + commandLine}
	default:
		return m, fmt.Errorf("no guests of architecture %s", a.arch)
	}
	_, err := exec.LookPath(m.emulate)
	if err == nil {
		m.busybox, err = a.busybox(ctx)
	}
	if err != nil {
		return m, fmt.Errorf("%w: see .ci/deps for what is needed", err)
	}
	return m, nil
}

// commandLine of the kernel: it ends when it panics, and says little.
const commandLine = "panic=-1 quiet loglevel=2 mitigations=off random.trust_cpu=on"

// boot runs a kernel on a file system until it ends, and passes on what it
// says. It returns the facts that the guest has told, and an error unless its
// verdict is that all is well.
func (m machine) boot(ctx context.Context, k kernel, initrd string, out io.Writer) (facts string, err error) {
	// Emulated in software: what the machine has of hardware for it may be none,
	// or not work. The guest's clock is what its one CPU has done, a nanosecond an
	// instruction, and jumps to the next timer while there is nothing to do: what
	// a test finds does not depend on what else this machine does, and a guest
	// that sleeps costs no time. More CPUs do not come up by such a clock.
	args := append([]string{
		"-accel", "tcg", "-icount", "shift=0,sleep=off", "-cpu", "max", "-m", fmt.Sprint(memory),
		"-kernel", k.image(), "-initrd", initrd,
		"-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot",
		"-serial", "stdio",
	}, m.options...)
	cmd := exec.CommandContext(ctx, m.emulate, args...)
	cmd.WaitDelay = 5 * time.Second
	cmd.Stderr = out
	console, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	verdict := ""
	lines := bufio.NewScanner(console)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		if f, ok := strings.CutPrefix(line, factsPrefix); ok {
			facts = f
			continue
		}
		if v, ok := strings.CutPrefix(line, verdictPrefix); ok {
			verdict = v
			continue
		}
		fmt.Fprintln(out, line)
	}
	// It ends with 0 whatever happens inside.
	err = errors.Join(lines.Err(), cmd.Wait(), ctx.Err())
	switch {
	case verdict == "0":
		return facts, err
	case verdict == "":
		return facts, errors.Join(errors.New("the guest ended without a verdict"), err)
	}
	return facts, errors.Join(errors.New("tests failed"), err)
}

// pack writes the first file system of a guest: what boots it, the kernel's
// modules for networks, and what is to be run.
func (m machine) pack(k kernel, jobs []job, to string) error {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	c := newCPIO(f)
	c.text("init", guestInit, 0o755)
	c.file("bin/busybox", m.busybox, 0o755)
	c.link("bin/sh", "busybox")
	for _, name := range m.programs {
		if err := c.program(name); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	files, err := k.networkModules()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	for _, name := range files {
		name = filepath.Join(k.modules(), name)
		c.file(name, filepath.Join(k.dir, name), 0o644)
	}
	var script strings.Builder
	for _, j := range jobs {
		dir := filepath.Join("src", j.dir)
		if !c.made[dir] {
			c.file(filepath.Join(dir, "run"), j.program, 0o755)
			if data := filepath.Join(j.dir, "testdata"); isDir(data) {
				c.tree(filepath.Join("src", data), data)
			}
			objects, err := filepath.Glob(filepath.Join(j.dir, "*.o"))
			c.fail(err)
			for _, o := range objects {
				c.file(filepath.Join("src", o), o, 0o644)
			}
		}
		fmt.Fprintf(&script, "%s %s\n", j.dir, j.args)
	}
	c.text("run-these", script.String(), 0o644)
	return errors.Join(c.close(), f.Close())
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// networkModules returns what a guest may need below the directory of modules:
// protocols, virtual devices, all that these depend on, and the indexes.
func (k kernel) networkModules() ([]string, error) {
	dir := filepath.Join(k.dir, k.modules())
	text, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	wanted := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		// kernel/net/ipv4/tcp_diag.ko: kernel/net/ipv4/inet_diag.ko
		module, needs, _ := strings.Cut(strings.TrimSpace(line), ":")
		if !forNetworks(module) {
			continue
		}
		wanted[module] = true
		for _, n := range strings.Fields(needs) {
			wanted[n] = true
		}
	}
	indexes, err := filepath.Glob(filepath.Join(dir, "modules.*"))
	if err != nil {
		return nil, err
	}
	var files []string
	for _, path := range indexes {
		files = append(files, filepath.Base(path))
	}
	for module := range wanted {
		files = append(files, module)
	}
	return files, nil
}

func forNetworks(module string) bool {
	if virtual, ok := strings.CutPrefix(module, "kernel/drivers/net/"); ok {
		// Those of hardware are in deeper directories by kind and vendor.
		kind := filepath.Dir(virtual)
		return kind == "." || kind == "vxlan" || kind == "bonding" || kind == "ipvlan"
	}
	protocol, ok := strings.CutPrefix(module, "kernel/net/")
	kind, _, _ := strings.Cut(protocol, "/")
	switch kind {
	case "sunrpc", "ceph", "9p", "vmw_vsock", "rds", "tipc", "smc", "openvswitch":
		return false
	}
	return ok
}
