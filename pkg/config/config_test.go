package config

import (
	"errors"
	"fmt"
	"headgate/pkg/source"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"headgate/pkg/controller"
	"headgate/pkg/pace"
)

func ptr[T any](v T) *T { return &v }

func parse(t *testing.T, text string, in Input) (*Config, error) {
	t.Helper()
	if in.File == "" {
		in.File = "/etc/headgate.yaml"
	}
	return Parse([]byte(text), in)
}

// What a rule has that gives neither hold nor pace.
var (
	unsourced = PerSource{Prefix4: 32, Prefix6: 64}
	unheld    = Hold{MaxWaiting: 1000, Order: "fifo"}
	unpaced   = Pace{Burst: 1, Headroom: 1.2, WarmUp: Ramp{ColdFactor: 3}}
)

func TestDefaults(t *testing.T) {
	got, err := parse(t, "rules: [{port: 8080}]", Input{})
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Listen: "127.0.0.1:9464",
		Socket: "/run/headgate/headgate.sock",
		State:  "/sys/fs/bpf/headgate",
		Window: 100 * time.Millisecond,
		Lease:  3 * time.Second,
		Mode:   "enforce",
		Rules: []Rule{{
			Name:   "port-8080",
			Ports:  []uint16{8080},
			Mode:   "enforce",
			Unit:   "connection",
			Signal: "service",
			Limit:  Limit{Algorithm: "guarded"},
			Hold:   unheld,
			Pace:   unpaced,
			Reject: "reset",

			PerSource: unsourced,
		}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func networks(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range texts {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

var sameNetworks = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

func TestEveryKey(t *testing.T) {
	got, err := parse(t, `
listen: "[::1]:9000"
web_config: web.yaml
socket: /run/other.sock
socket_group: wheel
state: /sys/fs/bpf/gone/..//other/
window: 50ms
lease: 1m30s
mode: observe
rules:
  - name: shop
    ports: [8080, 8443]
    unit: request
    end: first_byte
    signal: rtt
    hold: {max_waiting: 500, order: lifo}
    exempt: ["::ffff:10.1.0.0/112", "fd00::/8", 192.0.2.1]
    per_source: {limit: 20, prefix4: 24, prefix6: 56, shared: {100.64.0.0/10: 50, "2001:db8::/32": 60}}
    classes:
      - {name: partners, sources: [192.0.2.0/24, "2001:db8:1::/48"], share: 0.3}
      - {name: own, sources: [198.51.100.0/24], share: 0.7}
    pace: {rate: 12.5, max_wait: 20s, warm_up: {period: 10s, cold_factor: 5}}
    reject: reset
    limit: {algorithm: gradient2, initial: 30, min: 10, max: 300, long_window: 5m,
            queue_size: "sqrt(limit), at least 4", rtt_tolerance: 2, few_samples: drop}
  - scope: {netns: blue}
    port: 8080
    mode: enforce
    warm_up: 60s
    reject: drop
    pace: {rate: auto, headroom: 1.5}
    limit: {algorithm: blog, growth: per_window}
  - {name: none, port: 1, force: true, hold: {max_wait: 0s}, limit: {algorithm: fixed, initial: 0, min: 0}}
defaults: # in force for the rules above it as well
  limit: {algorithm: blog, min: 7, smoothing: 0.3}
  hold: {max_wait: 10ms}
  pace: {headroom: 2}
  exempt: [127.0.0.0/8, "::1"]
  per_source: {prefix4: 28}
`, Input{})
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Listen:    "[::1]:9000",
		WebConfig: "/etc/web.yaml",
		Socket:    "/run/other.sock", SocketGroup: "wheel",
		State:  "/sys/fs/bpf/other",
		Window: 50 * time.Millisecond,
		Lease:  90 * time.Second,
		Mode:   "observe",
		Rules: []Rule{
			{
				Name: "shop", Ports: []uint16{8080, 8443}, Mode: "observe",
				Exempt: networks("10.1.0.0/16", "fd00::/8", "192.0.2.1/32"),
				PerSource: PerSource{Limit: 20, Prefix4: 24, Prefix6: 56, Shared: []source.Range{
					{Prefix: netip.MustParsePrefix("100.64.0.0/10"), Limit: 50},
					{Prefix: netip.MustParsePrefix("2001:db8::/32"), Limit: 60},
				}},
				Classes: []Class{
					{Name: "partners", Sources: networks("192.0.2.0/24", "2001:db8:1::/48"), Share: 0.3},
					{Name: "own", Sources: networks("198.51.100.0/24"), Share: 0.7},
				},
				Unit: "request", Signal: "rtt", Reject: "reset",
				Hold: Hold{MaxWait: 10 * time.Millisecond, MaxWaiting: 500, Order: "lifo"},
				Pace: Pace{
					Rate: Rate{PerSecond: 12.5}, Burst: 1, MaxWait: 20 * time.Second, Headroom: 2,
					WarmUp: Ramp{Period: 10 * time.Second, ColdFactor: 5},
				},
				Limit: Limit{Algorithm: "gradient2", Params: controller.Params{
					Initial: ptr(30), Min: ptr(10), Max: ptr(300),
					LongWindow:   &controller.Horizon{Time: 5 * time.Minute},
					RTTTolerance: ptr(2.0),
					FewSamples:   ptr(controller.Drop),
				}},
			},
			{
				Name: "port-8080", Ports: []uint16{8080}, Mode: "enforce",
				Exempt: networks("127.0.0.0/8", "::1/128"), PerSource: PerSource{Prefix4: 28, Prefix6: 64},
				Scope: Scope{Netns: "blue"}, WarmUp: ptr(time.Minute),
				Unit: "connection", Signal: "service", Reject: "drop",
				Hold: Hold{MaxWait: 10 * time.Millisecond, MaxWaiting: 1000, Order: "fifo"},
				Pace: Pace{Rate: Rate{Auto: true}, Burst: 1, Headroom: 1.5, WarmUp: Ramp{ColdFactor: 3}},
				Limit: Limit{Algorithm: "blog", Params: controller.Params{
					Min: ptr(7), Smoothing: ptr(0.3), Growth: ptr(controller.PerWindow),
				}},
			},
			{
				Name: "none", Ports: []uint16{1}, Mode: "observe", Force: true,
				Exempt: networks("127.0.0.0/8", "::1/128"), PerSource: PerSource{Prefix4: 28, Prefix6: 64},
				Unit: "connection", Signal: "service", Reject: "reset",
				Hold:  Hold{MaxWait: 0, MaxWaiting: 1000, Order: "fifo"},
				Pace:  Pace{Burst: 1, Headroom: 2, WarmUp: Ramp{ColdFactor: 3}},
				Limit: Limit{Algorithm: "fixed", Params: controller.Params{Initial: ptr(0), Min: ptr(0)}},
			},
		},
	}
	queue := got.Rules[0].Limit.Params.QueueSize
	if queue == nil || queue.String() != "sqrt(limit), at least 4" {
		t.Errorf("queue_size is %v", queue)
	}
	got.Rules[0].Limit.Params.QueueSize = nil
	if d := cmp.Diff(want, got, sameNetworks); d != "" {
		t.Error(d)
	}
	for _, target := range got.Targets() {
		if _, err := target.NewAlgorithm(); err != nil {
			t.Errorf("%s: %v", target.Rule.Name, err)
		}
	}
}

func TestOverrides(t *testing.T) {
	env := Environment(func(name string) (string, bool) {
		v, ok := map[string]string{
			"HEADGATE_LISTEN": ":1", "HEADGATE_STATE": "/env", "HEADGATE_WINDOW": "",
			"HEADGATE_WEB_CONFIG": "web.yaml", "HEADGATE_RULES": "x",
		}[name]
		return v, ok
	})
	flags := func(key string) (string, string, bool) { return "/flag", "--state", key == "state" }
	c, err := parse(t, "listen: :2\nstate: /file\nwindow: 20ms\nlease: 1h\nrules: [{port: 80}]",
		Input{Overrides: []Override{flags, env}})
	if err != nil {
		t.Fatal(err)
	}
	got := []any{c.Listen, c.State, c.Window, c.Lease, c.WebConfig}
	want := []any{":1", "/flag", 20 * time.Millisecond, time.Hour, "web.yaml"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}

	bad := Environment(func(name string) (string, bool) {
		return map[string]string{"HEADGATE_LISTEN": "x", "HEADGATE_LEASE": "1s", "HEADGATE_WINDOW": "1s"}[name], true
	})
	_, err = Load(Input{Ports: []string{"8080"}, Overrides: []Override{bad}})
	for _, want := range []string{
		`HEADGATE_LISTEN: listen: "x" is not host:port`,
		"HEADGATE_LEASE: lease: the lease of 1s is less than 3 windows of 1s",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\ndoes not say %s", err, want)
		}
	}
}

func TestPorts(t *testing.T) {
	c, err := Load(Input{Ports: []string{"8080", "22"}, SSHPorts: []uint16{22}, Force: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, target := range c.Targets() {
		got = append(got, target.Rule.Name)
	}
	if d := cmp.Diff([]string{"port-8080", "port-22"}, got); d != "" {
		t.Error(d)
	}

	c, err = parse(t, "defaults: {limit: {max: 7}}", Input{Ports: []string{"8080"}})
	if err != nil {
		t.Fatal(err)
	}
	if m := c.Rules[0].Limit.Params.Max; m == nil || *m != 7 {
		t.Error("-p leaves out the defaults of the file")
	}
}

func TestLoadFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(Input{File: filepath.Join(dir, "none.yaml")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := Load(Input{File: dir}); err == nil {
		t.Error("a directory was accepted")
	}
	file := filepath.Join(dir, "windows.yaml")
	if err := os.WriteFile(file, []byte("\xef\xbb\xbflease: 3s\r\nrules:\r\n  - port: 80\r\n    scope: host\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Input{File: file}); err != nil {
		t.Errorf("a file with CRLF and a byte order mark: %v", err)
	}
}

// What is given by a pipe is read; nobody is waited for who says nothing.
func TestLoadPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString("rules: [{port: 80}]"); err != nil {
		t.Fatal(err)
	}
	pipe := fmt.Sprintf("/proc/self/fd/%d", r.Fd())
	if _, err := read(pipe, 10*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a pipe that is not closed: got %v", err)
	}
	if _, err := w.WriteString("rules: [{port: 80}]"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := Load(Input{File: pipe}); err != nil {
		t.Errorf("a pipe: %v", err)
	}

	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := Load(Input{File: fifo})
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a pipe that nobody writes to was taken for a configuration")
		}
	case <-time.After(patience / 2):
		t.Error("waits for somebody to write to a pipe")
	}
}

func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, f := range files {
		if _, err := Load(Input{File: f}); err != nil {
			t.Error(err)
		}
	}
}

func TestNeeds(t *testing.T) {
	for text, want := range map[string]struct{ paced, waits, ingress bool }{
		"":                                 {},
		"unit: request":                    {ingress: true},
		"reject: drop":                     {ingress: true},
		"hold: {max_wait: 1ms}":            {waits: true, ingress: true},
		"hold: {max_wait: 0s}":             {},
		"pace: {rate: 10}":                 {paced: true},
		"pace: {rate: auto}":               {paced: true},
		"pace: {rate: 10, max_wait: 1s}":   {paced: true, waits: true, ingress: true},
		"pace: {rate: none, max_wait: 1s}": {},
		"hold: {max_waiting: 5}, pace: {rate: 10, max_wait: 1s}": {paced: true, waits: true, ingress: true},
	} {
		c, err := parse(t, "rules: [{port: 1, "+text+"}]", Input{})
		if err != nil {
			t.Error(err)
			continue
		}
		r := &c.Rules[0]
		if r.Paced() != want.paced || r.Waits() != want.waits || r.NeedsIngress() != want.ingress {
			t.Errorf("%s: paced %v, waits %v, needs ingress %v", text, r.Paced(), r.Waits(), r.NeedsIngress())
		}
	}
}

// A rule is as its defaults where it says nothing, and what the defaults say
// and it has no use for is no error.
func TestDefaultsOfWaits(t *testing.T) {
	c, err := parse(t, `
defaults:
  unit: request
  end: first_byte
  hold: {max_wait: 1s}
  pace: {rate: 100, burst: 7, max_wait: 2s, headroom: 3, warm_up: {period: 10s}}
rules:
  - {port: 1, hold: {order: lifo}}
  - {port: 2, unit: connection, hold: {max_wait: 0s}, pace: {rate: none}}
  - {port: 3, pace: {rate: auto, warm_up: {period: 0s}}}
`, Input{Ports: []string{"4"}})
	if err != nil {
		t.Fatal(err)
	}
	slow := Pace{
		Rate: Rate{PerSecond: 100}, MaxWait: 2 * time.Second, Burst: 7, Headroom: 3,
		WarmUp: Ramp{Period: 10 * time.Second, ColdFactor: 3},
	}
	off, auto := slow, slow
	off.Rate, auto.Rate, auto.WarmUp.Period = Rate{}, Rate{Auto: true}, 0
	hold := Hold{MaxWait: time.Second, MaxWaiting: 1000, Order: "fifo"}
	lifo := hold
	lifo.Order = "lifo"
	for i, want := range []Rule{
		{Unit: "request", Hold: lifo, Pace: slow},
		{Unit: "connection", Hold: unheld, Pace: off},
		{Unit: "request", Hold: hold, Pace: auto},
		{Unit: "request", Hold: hold, Pace: slow},
	} {
		r := c.Rules[i]
		if d := cmp.Diff(want, Rule{Unit: r.Unit, Hold: r.Hold, Pace: r.Pace}); d != "" {
			t.Errorf("rule %d: %s", i, d)
		}
	}
}

// What can be set is what can be paced.
func TestPaceBounds(t *testing.T) {
	if minRate != pace.MinRate || maxRate != pace.MaxRate {
		t.Errorf("rates from %v to %v, not %v to %v", minRate, maxRate, pace.MinRate, pace.MaxRate)
	}
	for _, period := range []time.Duration{minRamp, maxRamp} {
		for _, factor := range []int{minColdFactor, maxColdFactor} {
			if _, err := pace.NewWarmPacer(pace.Ramp{Rate: 1000, Period: period, ColdFactor: factor}, maxWait, 1); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestStrings(t *testing.T) {
	for want, s := range map[string]fmt.Stringer{
		"none": Rate{}, "auto": Rate{Auto: true}, "0.001": Rate{PerSecond: 1e-3}, "1000000": Rate{PerSecond: 1e6},
		"first_byte": End{}, "idle 20ms": End{Idle: 20 * time.Millisecond},
	} {
		if got := s.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestScopeString(t *testing.T) {
	for want, s := range map[string]Scope{"host": {}, "netns:blue": {Netns: "blue"}} {
		if got := s.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
