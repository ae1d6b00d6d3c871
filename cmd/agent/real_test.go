package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/api"
	"headgate/pkg/config"
	"headgate/pkg/controller"
	"headgate/pkg/doctor"
	"headgate/pkg/events"
)

// bpffs is where the agents of these tests keep their state; empty without root.
var bpffs string

// asCommand is a variable that has this program run a command line.
const asCommand = "HEADGATE_TEST_COMMAND"

func TestMain(m *testing.M) {
	if args := os.Getenv(asCommand); args != "" {
		os.Exit(run(context.Background(), strings.Fields(args), os.Stdout, os.Stderr))
	}
	os.Exit(lab.MainBPF(m, &bpffs))
}

// protected is a host with a server on port 8080 that may have one connection,
// and an agent that others can ask.
type protected struct {
	host  *lab.Host
	agent *agent.Agent
	addr  string // of the agent
	state string
}

func protectOne(t *testing.T) protected {
	t.Helper()
	l := lab.ForTest(t, "srv")
	h := l.Host("srv")
	cfg := config.Default()
	cfg.State = filepath.Join(bpffs, "state")
	cfg.Listen = "127.0.0.1:0"
	cfg.Lease = time.Second
	one := 1
	r := config.DefaultRule()
	r.Name, r.Ports, r.Mode = "shop", []uint16{8080}, config.ModeEnforce
	r.Scope = config.Scope{Netns: h.NetNS}
	r.Limit = config.Limit{Algorithm: "fixed", Params: controller.Params{Initial: &one}}
	cfg.Rules = []config.Rule{r}
	log := slog.New(slog.DiscardHandler)
	a, err := agent.Start(cfg, "test", log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Remove(); err != nil {
			t.Error(err)
		}
	})
	s, err := api.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(a, log) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	ln, err := h.Listen("tcp4", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	var accepted sync.WaitGroup
	accepted.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
		}
	})
	t.Cleanup(func() { ln.Close(); accepted.Wait() })
	return protected{host: h, agent: a, addr: s.Addr().String(), state: cfg.State}
}

// knock connects so often; the first stays.
func (p protected) knock(t *testing.T, n int) {
	t.Helper()
	for range n {
		if c, err := p.host.Dial(t.Context(), "tcp", "127.0.0.1:8080"); err == nil {
			t.Cleanup(func() { c.Close() })
		}
	}
}

// Every command that asks an agent, asked of a real one.
func TestCommandsAskARealAgent(t *testing.T) {
	lab.NeedRoot(t)
	p := protectOne(t)
	p.knock(t, 4)
	scope := "netns:" + p.host.NetNS
	says := func(want string, args ...string) string {
		t.Helper()
		args = append(args, "--listen", p.addr)
		var out, errs string
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			var code int
			code, out, errs = runMain(t, args...)
			if code == 0 && strings.Contains(out, want) {
				return out
			}
		}
		t.Fatalf("%v: no %q in %s%s", args, want, out, errs)
		return ""
	}
	says("1/1", "status")
	says("conn", "status", "8080")
	says(`"listening": true`, "status", "8080", "-o", "json")
	says("3 refused because the limit was reached", "explain", "8080")
	says("3 refused because the limit was reached", "explain", "shop")
	says("3 refused because the limit was reached", "explain", scope+"/8080")
	says("conn", "status", "shop", scope+"/8080")
	says(`"reason": "limit"`, "explain", "8080", "--scope", scope, "-o", "json")
	says("refused: the limit was reached", "events")
	if _, out, _ := runMain(t, "__complete", "explain", "--listen", p.addr, ""); out != "8080\tshop, "+scope+"\nshop\trule\n:4\n" {
		t.Errorf("completion: %q", out)
	}
	t.Setenv("HEADGATE_LISTEN", p.addr)
	for _, command := range [][]string{{"limit", "set"}, {"limit", "clear"}, {"mode", "observe"}} {
		if _, out, _ := runMain(t, append(append([]string{"__complete"}, command...), "")...); out != "8080\tshop, "+scope+"\nshop\trule\n:4\n" {
			t.Errorf("completion of %v: %q", command, out)
		}
	}
	lines := strings.Split(strings.TrimSpace(says(`"type":"rejection"`, "events", "-o", "json")), "\n")
	for _, line := range lines {
		var e events.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Client == nil || e.Port != 8080 {
			t.Errorf("%s: %v", line, err)
		}
	}
	if code, _, errs := runMain(t, "status", "99", "--listen", p.addr); code != 1 || !strings.Contains(errs, `"99" is neither a protected port`) {
		t.Errorf("%d %s", code, errs)
	}
	if code, _, errs := runMain(t, "explain", "shopp", "--listen", p.addr); code != 1 || !strings.Contains(errs, "nor the name of a rule") {
		t.Errorf("%d %s", code, errs)
	}
	if code, _, errs := runMain(t, "explain", "99", "--listen", p.addr); code != 1 || !strings.Contains(errs, "protected are 8080") {
		t.Errorf("%d %s", code, errs)
	}
	if code, _, errs := runMain(t, "top", "--listen", p.addr); code != 1 || !strings.Contains(errs, "this is no terminal") {
		t.Errorf("%d %s", code, errs)
	}
}

// examined runs doctor and returns its findings by what they are about.
func examined(t *testing.T, args ...string) (code int, findings map[string]doctor.Finding) {
	t.Helper()
	code, out, errs := runMain(t, append([]string{"doctor", "-o", "json"}, args...)...)
	return code, parseFindings(t, out+errs, out)
}

func parseFindings(t *testing.T, all, out string) map[string]doctor.Finding {
	t.Helper()
	var list []doctor.Finding
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v in %s", err, all)
	}
	findings := make(map[string]doctor.Finding)
	for _, f := range list {
		findings[f.About] = f
		if f.State == doctor.Trouble && f.Do == "" {
			t.Errorf("nothing to do about %+v", f)
		}
	}
	return findings
}

func TestDoctor(t *testing.T) {
	lab.NeedRoot(t)
	p := protectOne(t)
	code, found := examined(t, "--listen", p.addr, "--state", p.state, "-p", "1")
	if code != 0 {
		t.Errorf("exit code %d: %+v", code, found)
	}
	for about, want := range map[string]string{
		"agent": "protects 1 targets", "bpffs": p.state, "programs": "takes all", "holding": "can be held",
		"btf": "/sys/kernel/btf/vmlinux", "cgroup2": "/cgroup", "capabilities": "all", "others": "says the agent", "jit": "compiled",
	} {
		if f := found[about]; f.State != doctor.OK || !strings.Contains(f.Text, want) {
			t.Errorf("%s: %+v", about, f)
		}
	}
	if f := found["listeners"]; f.State != doctor.Warning || !strings.Contains(f.Text, "port 1 ") {
		t.Errorf("a port that nobody listens on: %+v", f)
	}
	// It dies, and leaves everything in the kernel.
	if err := p.agent.Stop(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond) // the lease
	code, found = examined(t, "--listen", "127.0.0.1:1", "--state", p.state)
	if f := found["agent"]; code != 1 || f.State != doctor.Trouble || !strings.Contains(f.Text, "every gate is open") || !strings.Contains(f.Do, "cleanup") {
		t.Errorf("after the agent's death: exit code %d, %+v", code, f)
	}
	code, found = examined(t, "--listen", "127.0.0.1:1", "--state", "/proc/headgate")
	if f := found["bpffs"]; code != 1 || f.State != doctor.Trouble || !strings.Contains(f.Do, "mount -t bpf") {
		t.Errorf("a state that is on no bpffs: exit code %d, %+v", code, f)
	}
}

// Whoever is not root is told what could not be seen.
func TestDoctorWithoutRoot(t *testing.T) {
	lab.NeedRoot(t)
	program := filepath.Join("/tmp", fmt.Sprintf("%s%d-doctor", lab.Prefix, os.Getpid()))
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, self, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(program)
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Dir = "/"
	cmd.Env = []string{asCommand + "=doctor -o json --listen 127.0.0.1:1 --state " + bpffs + "/state"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s%s", err, out.String(), errs.String())
	}
	found := parseFindings(t, out.String()+errs.String(), out.String())
	for about, want := range map[string]doctor.State{
		"capabilities": doctor.Warning, "programs": doctor.Unseen, "holding": doctor.Unseen, "bpffs": doctor.Unseen,
		"btf": doctor.OK, "cgroup2": doctor.OK,
	} {
		if f := found[about]; f.State != want || want != doctor.OK && f.Do == "" {
			t.Errorf("%s: %+v, want %s", about, f, want)
		}
	}
}

// Check says what an agent would do, before there is one.
func TestCheckSaysWhatWouldBeAttachedWhere(t *testing.T) {
	lab.NeedRoot(t)
	l := lab.ForTest(t, "srv")
	h := l.Host("srv")
	ln, err := h.Listen("tcp4", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := fmt.Sprintf(`state: %s/checked
rules:
  - {name: shop, ports: [8080, 8443], scope: {netns: %s}}
  - {name: db, port: 5432, unit: request, hold: {max_wait: 1s}, scope: {netns: %s}, limit: {algorithm: fixed, initial: 5}}
`, bpffs, h.NetNS, h.NetNS)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := runMain(t, "check", "-c", file)
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	ns := "netns:" + filepath.Base(h.NetNS)
	for _, want := range []string{
		": count connections (sockops, sock_release)\n",
		"  network namespace " + ns + ": admit: port 8080, 8443, 5432 (sk_lookup)\n",
		"  devices lo of " + ns + ": hold, drop, or look at requests: port 5432 (tc ingress)\n",
		"  packet filter of " + ns + ": queue what has to wait (prerouting)\n",
		": time requests: port 8080 (cgroup_skb)\n",
		"  port 5432 in " + ns + ", rule db: requests, fixed, enforce, signal service\n",
		"needs CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_NET_RAW (to answer clients that are held or dropped), CAP_SYS_ADMIN (to enter other network namespaces)\n",
		"note: nobody listens on port 8443, 5432 in " + ns,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if _, err := os.Stat(bpffs + "/checked"); !os.IsNotExist(err) {
		t.Errorf("check left something: %v", err)
	}
}

// screen is a terminal that a command runs in.
type screen struct {
	t    *testing.T
	vt   *vt.SafeEmulator
	keys *os.File
	raw  lockedBuffer
	code chan int
}

type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// inTerminal runs a command in a terminal of 80 by 24.
func inTerminal(t *testing.T, args ...string) *screen {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(tty, &pty.Winsize{Cols: 80, Rows: 24}); err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, vt: vt.NewSafeEmulator(80, 24), keys: master, code: make(chan int, 1)}
	var copies sync.WaitGroup
	copies.Go(func() { _, _ = io.Copy(io.MultiWriter(s.vt, &s.raw), master) })
	go func() { _, _ = io.Copy(master, s.vt) }() // what a terminal answers
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		root := newRootCmd(tty, tty)
		root.SetIn(tty)
		root.SetArgs(args)
		code := 0
		if err := root.ExecuteContext(ctx); err != nil {
			fmt.Fprintln(tty, err)
			code = 1
		}
		s.code <- code
	}()
	t.Cleanup(func() {
		cancel()
		tty.Close()
		master.Close()
		copies.Wait()
		s.vt.Close()
	})
	return s
}

// shows waits until the screen has a text.
func (s *screen) shows(text string) {
	s.t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if strings.Contains(s.vt.String(), text) {
			return
		}
	}
	s.t.Fatalf("no %q on the screen:\n%s", text, s.vt.String())
}

func (s *screen) press(keys string) {
	s.t.Helper()
	if _, err := s.keys.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) ends() {
	s.t.Helper()
	select {
	case code := <-s.code:
		if code != 0 {
			s.t.Errorf("it ended with %d:\n%s", code, s.vt.String())
		}
	case <-time.After(5 * time.Second):
		s.t.Errorf("it does not end:\n%s", s.vt.String())
	}
}

func TestTopInATerminal(t *testing.T) {
	lab.NeedRoot(t)
	p := protectOne(t)
	t.Setenv("TERM", "xterm-256color")
	t.Setenv("LC_ALL", "C.UTF-8")
	s := inTerminal(t, "top", "--listen", p.addr)
	s.shows(">shop")
	p.knock(t, 50)
	s.shows("▇") // one in flight, of one
	s.press("\r")
	s.shows("What would raise it")
	s.press("\x1b[6~") // page down
	s.shows("49 refused because the limit was reached")
	s.press("\x1b")
	s.shows("sort: rule")
	s.press("/xyz\r")
	s.shows("no target matches")
	s.press("q")
	s.ends()
	if !strings.Contains(s.raw.String(), "\x1b[36m") {
		t.Error("no colour was written")
	}

	t.Setenv("NO_COLOR", "1")
	t.Setenv("LC_ALL", "C")
	s = inTerminal(t, "top", "--listen", p.addr)
	s.shows("#")
	s.shows(">shop")
	s.press("\x03") // interrupt
	s.ends()
	for _, colour := range []string{"\x1b[36m", "\x1b[31m", "\x1b[32m", "\x1b[33m"} {
		if strings.Contains(s.raw.String(), colour) {
			t.Errorf("%q was written with NO_COLOR", colour)
		}
	}
}

// An address that nobody listens on is told without taking the screen.
func TestTopWithoutAnAgent(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	free.Close()
	s := inTerminal(t, "top", "--listen", addr)
	s.shows("no agent listens there")
	if code := <-s.code; code != 1 {
		t.Errorf("exit code %d", code)
	}
}
