package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/scope"
)

// bad is a start that must fail.
type bad struct {
	name  string
	yaml  string   // the configuration; empty: flags only
	flags []string // after the verb
	verbs []string // run, if none is named
	setup func(*testing.T, *lab.Host)
	cmd   func(*lab.Cmd)

	code int
	says []string // {file} stands for the path of the configuration
}

// inShell runs the command by a script, in a mount namespace of its own. In
// the script $0 stands for arg and "$@" for the command.
func inShell(c *lab.Cmd, script, arg string) {
	c.Args = append([]string{"sh", "-c", script, arg, c.Path}, c.Args[1:]...)
	c.Path = "/bin/sh"
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
}

// unmounted runs the command without what is mounted on a directory, if
// anything is.
func unmounted(dir string) func(*lab.Cmd) {
	return func(c *lab.Cmd) {
		inShell(c, `while grep -q " $0 " /proc/self/mountinfo; do umount -l "$0" || exit; done; exec "$@"`, dir)
	}
}

// unprivileged runs the command as nobody, on a BPF file system of its own,
// and says what it leaves there. By its path: a shell may have a setpriv of its own
// that can do less.
func unprivileged(mode string) func(*lab.Cmd) {
	return func(c *lab.Cmd) {
		inShell(c, `mount -t bpf -o mode="$0" bpf /sys/fs/bpf &&
			/usr/bin/setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
			code=$?
			echo "left: $(ls /sys/fs/bpf | grep headgate)."
			exit $code`, mode)
	}
}

func TestInput(t *testing.T) {
	lab.ForTest(t, "any") // skips without root
	program := buildAgent(t)
	cgroup2, err := scope.Cgroup2()
	if err != nil {
		t.Fatal(err)
	}
	both := []string{"run", "check"}

	for _, b := range []bad{
		{
			name: "unknown key", verbs: both, code: 1,
			yaml: "rules:\n  - port: 8080\n    limt: 5\n",
			says: []string{"{file}:3:5:", "limt", "limit"},
		},
		{
			name: "port 0", verbs: both, code: 1,
			yaml: "rules:\n  - port: 0\n",
			says: []string{"{file}:2:11:", "rules[0].port", "1 to 65535"},
		},
		{
			name: "port 70000", verbs: both, code: 1,
			yaml: "rules:\n  - ports: [8080, 70000]\n",
			says: []string{"{file}:2:19:", "rules[0].ports[1]", "1 to 65535"},
		},
		{
			name: "port 70000 by flag", verbs: both, code: 2,
			flags: []string{"-p", "70000"},
			says:  []string{`-p "70000"`, "1 to 65535"},
		},
		{
			name: "duplicate target", verbs: both, code: 1,
			yaml: "rules:\n  - {name: a, port: 8080}\n  - {name: b, ports: [80, 8080]}\n",
			says: []string{"{file}:3:27:", "8080", "{file}:2:", "already"},
		},
		{
			name: "min over max", verbs: both, code: 1,
			yaml: "rules:\n  - port: 8080\n    limit: {min: 50, max: 10}\n",
			says: []string{"{file}:3:", "max", "10", "50"},
		},
		{
			name: "no file", verbs: both, code: 1,
			flags: []string{"-c", "/nonexistent/headgate.yaml"},
			says:  []string{"read configuration", "/nonexistent/headgate.yaml", "no such file"},
		},
		{
			name: "a directory for a file", verbs: both, code: 1,
			flags: []string{"-c", "/proc"},
			says:  []string{"read configuration", "/proc", "is a directory"},
		},
		{
			name: "no root", verbs: both, code: 1,
			flags: []string{"-p", "8080", "--state", "/sys/fs/bpf/headgate-test"},
			cmd:   unprivileged("1777"),
			says:  []string{"operation not permitted", "run as root", "CAP_BPF", "left: ."},
		},
		{
			name: "no root, no right to the state", verbs: both, code: 1,
			flags: []string{"-p", "8080", "--state", "/sys/fs/bpf/headgate-test"},
			cmd:   unprivileged("700"),
			says:  []string{"/sys/fs/bpf/headgate-test", "permission denied", "run as root", "left: ."},
		},
		{
			name: "no cgroup2", verbs: both, code: 1,
			flags: []string{"-p", "8080"},
			cmd:   unmounted(cgroup2),
			says:  []string{"cgroup2", "mount -t cgroup2"},
		},
		{
			name: "no bpffs", verbs: both, code: 1,
			flags: []string{"-p", "8080", "--state", "/sys/fs/bpf/headgate-test"},
			cmd:   unmounted("/sys/fs/bpf"),
			says:  []string{"/sys/fs/bpf/headgate-test", "bpffs", "mount -t bpf"},
		},
		{
			name: "few files", verbs: both, code: 1,
			flags: []string{"-p", "8080"},
			cmd:   func(c *lab.Cmd) { inShell(c, `ulimit -n "$0"; exec "$@"`, "80") },
			says:  []string{"80 files", "128", "ulimit -n", "LimitNOFILE="},
		},
		{
			name: "address in use", code: 1,
			flags: []string{"-p", "8080"},
			setup: func(t *testing.T, h *lab.Host) {
				ln, err := h.Listen("tcp", "127.0.0.1:9464")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { ln.Close() })
			},
			says: []string{"127.0.0.1:9464", "in use", "--listen"},
		},
		{
			name: "unknown flag", verbs: both, code: 2,
			flags: []string{"--prot", "8080"},
			says:  []string{"--prot", "--help"},
		},
		{
			name: "nothing to protect", verbs: both, code: 2,
			says: []string{"-p", "-c", "--help"},
		},
		{name: "unknown verb", verbs: []string{"protect"}, code: 2, says: []string{"protect", "--help"}},
	} {
		if b.verbs == nil {
			b.verbs = []string{"run"}
		}
		for _, verb := range b.verbs {
			t.Run(verb+" "+b.name, func(t *testing.T) { b.test(t, program, verb) })
		}
	}
	t.Run("second agent", func(t *testing.T) { testSecondAgent(t, program) })
}

func (b bad) test(t *testing.T, program, verb string) {
	l := lab.ForTest(t, "srv")
	srv := l.Host("srv")
	if b.setup != nil {
		b.setup(t, srv)
	}
	file := filepath.Join(t.TempDir(), "headgate.yaml")
	var args []string
	if b.yaml != "" {
		if err := os.WriteFile(file, []byte(b.yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-c", file)
	}
	args = append(args, b.flags...)
	if !strings.Contains(strings.Join(args, " "), "--state") && len(args) > 0 {
		args = append(args, "--state", stateDir())
	}
	code, text := fails(t, program, srv, append([]string{verb}, args...), b.cmd)
	t.Logf("exit code %d:\n%s", code, text)
	if code != b.code {
		t.Errorf("exit code %d, want %d", code, b.code)
	}
	for _, s := range b.says {
		if s := strings.ReplaceAll(s, "{file}", file); !strings.Contains(text, s) {
			t.Errorf("the message does not say %q", s)
		}
	}
	if strings.Contains(text, "panic") || strings.Contains(text, "goroutine ") {
		t.Error("a panic")
	}
	for _, dir := range []string{stateDir(), "/sys/fs/bpf/headgate-test"} {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("state directory %s: %v, want none", dir, err)
		}
	}
}

// fails runs a command that must end by itself, and returns its exit code and
// all that it says.
func fails(t *testing.T, program string, h *lab.Host, args []string, set func(*lab.Cmd)) (code int, text string) {
	t.Helper()
	cmd := h.Command(t.Context(), program, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if set != nil {
		set(cmd)
	}
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		t.Fatalf("%v: %v\n%s", args, err, &out)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

func testSecondAgent(t *testing.T, program string) {
	l := lab.ForTest(t, "srv")
	srv := l.Host("srv")
	keep(t, srv, "tcp", ":8080")
	first := runAgent(t, program, srv, open)
	ours := pinnedMaps(t)
	code, text := fails(t, program, srv,
		[]string{"run", "-p", "8080", "--state", stateDir(), "--listen", "127.0.0.1:9465"}, nil)
	t.Logf("exit code %d:\n%s", code, text)
	if code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	for _, s := range []string{"another headgate agent", fmt.Sprintf("pid %d", first.cmd.Process.Pid), stateDir(), "stop it"} {
		if !strings.Contains(text, s) {
			t.Errorf("the message does not say %q", s)
		}
	}
	if got := attachedPrograms(t, ours); !maps.Equal(got, whole) {
		t.Errorf("the first agent's programs: %v, want %v", got, whole)
	}
	if st := first.target(t); st.Limit != 10000 {
		t.Errorf("the first agent's limit is %d now", st.Limit)
	}
}
