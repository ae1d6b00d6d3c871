// Package doctor looks whether a host can be protected, and is: each finding
// says what to do about it. It changes nothing, needs no agent, and says what it
// could not see.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"headgate/pkg/status"
)

// State is how bad a finding is.
type State string

// The states of a finding.
const (
	OK      State = "ok"
	Warning State = "warning" // it works, but not as well as it could
	Trouble State = "trouble" // it does not work
	Unseen  State = "unseen"  // it could not be looked at
)

// Finding is what was found out about one thing.
type Finding struct {
	About string `json:"about"` // one word
	State State  `json:"state"`
	Text  string `json:"text"`
	Do    string `json:"do"` // what to do about it; empty when nothing
}

// Options of [Examine].
type Options struct {
	// StateDir is the state directory of an agent, on a bpffs.
	StateDir string

	// Ports are to be protected; those of a running agent come to them.
	Ports []uint16

	// Ask asks the agent that may be running for its status.
	Ask func(context.Context) (*status.Status, error)

	// Root is what the files of /proc and /sys are under: / but in tests.
	Root string
}

// Examine looks at everything, in an order in which one thing needs those
// before it.
func Examine(ctx context.Context, o Options) []Finding {
	if o.Root == "" {
		o.Root = "/"
	}
	e := &examination{Options: o}
	e.kernel()
	e.capabilities()
	e.btf()
	e.jit()
	e.bpffs()
	e.cgroup2()
	e.programs()
	e.devices()
	e.packetFilter()
	e.agent(ctx)
	e.foreign()
	e.conntrack()
	e.acceptQueues()
	return e.findings
}

// Troubled says whether something does not work.
func Troubled(all []Finding) bool {
	for _, f := range all {
		if f.State == Trouble {
			return true
		}
	}
	return false
}

type examination struct {
	Options
	findings []Finding
	status   *status.Status // of the running agent; nil: none
}

func (e *examination) add(about string, s State, do, format string, args ...any) {
	e.findings = append(e.findings, Finding{About: about, State: s, Text: fmt.Sprintf(format, args...), Do: do})
}

// read returns the text of a file under the root.
func (e *examination) read(path string) (string, error) {
	text, err := os.ReadFile(filepath.Join(e.Root, path))
	return strings.TrimSpace(string(text)), err
}

// number returns the number in a file.
func (e *examination) number(path string) (int, error) {
	text, err := e.read(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("/%s: %w", path, err)
	}
	return n, nil
}

func (e *examination) kernel() {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		e.add("kernel", Unseen, "", "its version is not told: %v", err)
		return
	}
	e.add("kernel", OK, "", "Linux %s, %s", unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:]))
}

// needed are the capabilities that an agent needs, by their numbers of
// capabilities(7).
var needed = []struct {
	name string
	bit  int
}{{"CAP_BPF", unix.CAP_BPF}, {"CAP_NET_ADMIN", unix.CAP_NET_ADMIN}, {"CAP_PERFMON", unix.CAP_PERFMON}}

func (e *examination) capabilities() {
	const about = "capabilities"
	text, err := e.read("proc/self/status")
	if err != nil {
		e.add(about, Unseen, "", "what this user may do is not told: %v", err)
		return
	}
	have, ok := effective(text)
	if !ok {
		e.add(about, Unseen, "", "/proc/self/status does not tell what this user may do")
		return
	}
	var missing []string
	for _, c := range needed {
		if have&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	switch {
	case len(missing) > 0:
		// What the agent has may be another matter.
		e.add(about, Warning, "run this, and the agent, as root, or with "+strings.Join(missing, ", "),
			"this user lacks %s: not everything can be seen", strings.Join(missing, ", "))
	case have&(1<<unix.CAP_SYS_ADMIN) == 0:
		e.add(about, OK, "", "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON; without CAP_SYS_ADMIN only the host's own network namespace can be protected")
	default:
		e.add(about, OK, "", "all that is needed")
	}
}

// may says whether this process has a capability; where that is not told, it may.
func (e *examination) may(capability int) bool {
	text, err := e.read("proc/self/status")
	if err != nil {
		return true
	}
	have, ok := effective(text)
	return !ok || have&(1<<capability) != 0
}

// effective reads the effective capabilities of proc_pid_status(5).
func effective(text string) (uint64, bool) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return n, err == nil
		}
	}
	return 0, false
}

func (e *examination) btf() {
	const path = "sys/kernel/btf/vmlinux"
	switch _, err := os.Stat(filepath.Join(e.Root, path)); {
	case err == nil:
		e.add("btf", OK, "", "the kernel describes its types in /%s", path)
	case errors.Is(err, fs.ErrNotExist):
		e.add("btf", Trouble, "use a kernel that was built with CONFIG_DEBUG_INFO_BTF, as all of the large distributions are",
			"there is no /%s: the programs cannot be loaded", path)
	default:
		e.add("btf", Unseen, "", "%v", err)
	}
}

func (e *examination) jit() {
	const path = "proc/sys/net/core/bpf_jit_enable"
	on, err := e.number(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		e.add("jit", Unseen, "", "whether programs are compiled is told to root only")
	case errors.Is(err, fs.ErrNotExist) && !e.initialNetns():
		e.add("jit", Unseen, "", "whether programs are compiled is told in the host's network namespace only")
	case errors.Is(err, fs.ErrNotExist):
		e.add("jit", Warning, "use a kernel that was built with CONFIG_BPF_JIT", "this kernel interprets BPF programs, ten times as slowly")
	case err != nil:
		e.add("jit", Unseen, "", "%v", err)
	case on == 0:
		e.add("jit", Warning, "sysctl -w net.core.bpf_jit_enable=1", "BPF programs are interpreted, ten times as slowly")
	default:
		if harden, err := e.number("proc/sys/net/core/bpf_jit_harden"); err == nil && harden == 2 {
			e.add("jit", Warning, "sysctl -w net.core.bpf_jit_harden=1", "BPF programs of root, too, are compiled with hardening, and run slower for it")
			return
		}
		e.add("jit", OK, "", "BPF programs are compiled")
	}
}

// initialNetns says whether the network namespace is the first: only there are
// the settings of all of them.
func (e *examination) initialNetns() bool {
	_, err := os.Stat(filepath.Join(e.Root, "proc/sys/net/core/netdev_budget"))
	return err == nil
}

// Full and nearly so.
const nearlyFull = 0.8

func (e *examination) conntrack() {
	const about = "conntrack"
	count, err := e.number("proc/sys/net/netfilter/nf_conntrack_count")
	if errors.Is(err, fs.ErrNotExist) {
		e.add(about, OK, "", "connections are not tracked here")
		return
	}
	most, err2 := e.number("proc/sys/net/netfilter/nf_conntrack_max")
	if err := errors.Join(err, err2); err != nil {
		e.add(about, Unseen, "", "%v", err)
		return
	}
	do := fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d, or exempt the protected ports by a notrack rule", 4*most)
	share := float64(count) / float64(max(most, 1))
	switch {
	case share >= 0.99:
		e.add(about, Trouble, do, "the table is full (%d of %d): the kernel drops new connections before headgate sees them", count, most)
	case share >= nearlyFull:
		e.add(about, Warning, do, "the table is %.0f %% full (%d of %d); when it is, the kernel drops new connections before headgate sees them", 100*share, count, most)
	default:
		e.add(about, OK, "", "%d of %d connections tracked", count, most)
	}
}
