package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/pkg/status"
)

// host makes the files of /proc and /sys that are looked at.
func host(t *testing.T, files map[string]string) *examination {
	t.Helper()
	e := &examination{Options: Options{Root: t.TempDir(), StateDir: "/nowhere"}}
	for path, text := range files {
		path = filepath.Join(e.Root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

func TestFiles(t *testing.T) {
	const (
		count = "proc/sys/net/netfilter/nf_conntrack_count"
		most  = "proc/sys/net/netfilter/nf_conntrack_max"
		jit   = "proc/sys/net/core/bpf_jit_enable"
		hard  = "proc/sys/net/core/bpf_jit_harden"
		first = "proc/sys/net/core/netdev_budget"
		own   = "proc/self/status"
	)
	for _, tt := range []struct {
		name     string
		files    map[string]string
		look     func(*examination)
		state    State
		text, do string
	}{
		{"no conntrack", nil, (*examination).conntrack, OK, "not tracked", ""},
		{"conntrack", map[string]string{count: "10", most: "1000"}, (*examination).conntrack, OK, "10 of 1000", ""},
		{"conntrack nearly full", map[string]string{count: "800", most: "1000"}, (*examination).conntrack, Warning, "80 % full (800 of 1000)", "nf_conntrack_max=4000"},
		{"conntrack full", map[string]string{count: "1000", most: "1000"}, (*examination).conntrack, Trouble, "the table is full", "nf_conntrack_max=4000"},
		{"conntrack, nonsense", map[string]string{count: "x", most: "1000"}, (*examination).conntrack, Unseen, "nf_conntrack_count", ""},
		{"jit", map[string]string{jit: "1", hard: "1"}, (*examination).jit, OK, "compiled", ""},
		{"jit off", map[string]string{jit: "0"}, (*examination).jit, Warning, "interpreted", "bpf_jit_enable=1"},
		{"jit hardened", map[string]string{jit: "1", hard: "2"}, (*examination).jit, Warning, "hardening", "bpf_jit_harden=1"},
		{"no jit", map[string]string{first: "300"}, (*examination).jit, Warning, "interprets", "CONFIG_BPF_JIT"},
		{"another namespace", nil, (*examination).jit, Unseen, "the host's network namespace only", ""},
		{"no btf", nil, (*examination).btf, Trouble, "cannot be loaded", "CONFIG_DEBUG_INFO_BTF"},
		{"btf", map[string]string{"sys/kernel/btf/vmlinux": ""}, (*examination).btf, OK, "", ""},
		{"root", map[string]string{own: "Name:\tx\nCapEff:\t000001ffffffffff"}, (*examination).capabilities, OK, "all", ""},
		{"nobody", map[string]string{own: "CapEff:\t0000000000000000"}, (*examination).capabilities, Warning, "lacks CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON", "as root"},
		{"service", map[string]string{own: "CapEff:\t000000c000001000"}, (*examination).capabilities, OK, "without CAP_SYS_ADMIN", ""},
		{"odd", map[string]string{own: "CapEff:\tx"}, (*examination).capabilities, Unseen, "does not tell", ""},
		{"no state", nil, (*examination).bpffs, Trouble, "no BPF file system", "mount -t bpf"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := host(t, tt.files)
			tt.look(e)
			if len(e.findings) != 1 {
				t.Fatalf("%+v", e.findings)
			}
			f := e.findings[0]
			if f.State != tt.state || !strings.Contains(f.Text, tt.text) || !strings.Contains(f.Do, tt.do) || (tt.do == "") != (f.Do == "") {
				t.Errorf("%+v, want %s: %s; %s", f, tt.state, tt.text, tt.do)
			}
		})
	}
}

func TestAgent(t *testing.T) {
	sound := status.Target{Rule: "shop", Port: 8080, Scope: "host", Listening: true, Limit: 50, AcceptQueue: status.AcceptQueue{Max: 4096}}
	with := func(change func(*status.Status)) func(context.Context) (*status.Status, error) {
		return func(context.Context) (*status.Status, error) {
			s := &status.Status{Version: "1", LeaseSeconds: 3, LeaseAgeSeconds: 0.1, Targets: []status.Target{sound}}
			change(s)
			return s, nil
		}
	}
	for name, tt := range map[string]struct {
		ask   func(context.Context) (*status.Status, error)
		about string
		state State
		text  string
		do    string
	}{
		"well":        {with(func(*status.Status) {}), "agent", OK, "protects 1 targets; its lease of 3 s was renewed 0.1 s ago", ""},
		"no listener": {with(func(s *status.Status) { s.Targets[0].Listening = false }), "listeners", Warning, "nobody listens on port 8080", "start the server"},
		"stale":       {with(func(s *status.Status) { s.LeaseAgeSeconds = 7 }), "agent", Trouble, "not renewed for 7.0 s", "log"},
		"reload": {with(func(s *status.Status) {
			s.Reload = &status.Reload{SecondsAgo: 65, Error: "/etc/h.yaml:3:5: unknown key\n  3 | prot: 8080"}
		}), "reload", Trouble, "not reloaded 1m5s ago, the configuration before stays in force: /etc/h.yaml:3:5: unknown key", "headgate check"},
		"problem": {with(func(s *status.Status) { s.Problems = []string{"it is stuck"} }), "agent", Trouble, "it is stuck", "log"},
		"shadow": {with(func(s *status.Status) {
			s.Shadowed = []status.Shadow{{Hook: "sk_lookup", At: "host", ID: 7, Name: "steer"}}
		}), "others", Warning, "program 7 steer comes before ours at sk_lookup host", "bpftool prog show id 7"},
		"full queue": {with(func(s *status.Status) {
			s.Targets[0].AcceptQueue = status.AcceptQueue{Length: 128, Max: 128, OverflowsTotal: 9}
		}), "accept-queue", Warning, "port 8080: it is full (128); 9 connections were lost to it", "listen(2)"},
		"small somaxconn": {with(func(s *status.Status) {
			s.Targets[0].AcceptQueue = status.AcceptQueue{Max: 4096, OverflowsTotal: 9}
		}), "accept-queue", Warning, "9 connections were lost", "net.core.somaxconn=16384"},
		"none":      {func(context.Context) (*status.Status, error) { return nil, ErrNoAgent }, "agent", OK, "none is running", ""},
		"not known": {func(context.Context) (*status.Status, error) { return nil, errors.New("TLS") }, "agent", Unseen, "not known: TLS", ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := host(t, map[string]string{"proc/sys/net/core/somaxconn": "4096"})
			e.Ask = tt.ask
			e.agent(t.Context())
			if e.status != nil {
				e.foreign()
				e.acceptQueues()
			}
			for _, f := range e.findings {
				if f.About == tt.about && f.State == tt.state && strings.Contains(f.Text, tt.text) && strings.Contains(f.Do, tt.do) {
					return
				}
			}
			t.Errorf("%+v", e.findings)
		})
	}
}

// An agent that was killed leaves its programs in the kernel: doctor says so, what
// that means, and what to do.
func TestAgentThatIsGone(t *testing.T) {
	for name, tt := range map[string]struct {
		err      error
		left     time.Duration
		attached bool
		leaseErr error
		state    State
		text, do string
	}{
		"none": {ErrNoAgent, 0, false, nil, OK, "none is running", ""},
		"killed": {ErrNoAgent, -90 * time.Second, true, nil, Trouble,
			"pinned under /sys/fs/bpf/x is still there: nobody has renewed the limits since their lease ended 1m30s ago, so every gate is open, nobody is refused, and counting goes on",
			"start it again (it goes on with the counts), or take what it left out of the kernel: headgate cleanup"},
		"killed just now": {ErrNoAgent, 2 * time.Second, true, nil, Warning, "hold for 2.0 s more: one serves elsewhere, or has just died", "headgate cleanup"},
		"hangs":           {errors.New("timeout"), 2 * time.Second, true, nil, Warning, "does not answer: timeout", "headgate status"},
		"not root":        {ErrNoAgent, 0, false, fmt.Errorf("pins: %w", fs.ErrPermission), Unseen, "only root can see", "as root"},
	} {
		e := &examination{Options: Options{StateDir: "/sys/fs/bpf/x"}}
		e.silent(tt.err, tt.left, tt.attached, tt.leaseErr)
		if len(e.findings) != 1 {
			t.Fatalf("%s: %+v", name, e.findings)
		}
		f := e.findings[0]
		if f.State != tt.state || !strings.Contains(f.Text, tt.text) || !strings.Contains(f.Do, tt.do) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	err := WriteText(&b, []Finding{
		{"kernel", OK, "Linux 6.18", ""},
		{"conntrack", Warning, "the table is 91 % full (59000 of 65536); when it is, the kernel drops new connections before headgate sees them", "sysctl -w net.netfilter.nf_conntrack_max=262144"},
		{"agent", Trouble, "\x1b[31mred", ""},
	})
	want := `ok       kernel        Linux 6.18
warning  conntrack     the table is 91 % full (59000 of 65536); when it is, the
                       kernel drops new connections before headgate sees them
                   do: sysctl -w net.netfilter.nf_conntrack_max=262144
trouble  agent         ?[31mred
`
	if err != nil || b.String() != want {
		t.Errorf("%v:\n%s", err, b.String())
	}
	if Troubled([]Finding{{State: Warning}, {State: Unseen}}) || !Troubled([]Finding{{State: OK}, {State: Trouble}}) {
		t.Error("what is trouble?")
	}
}
