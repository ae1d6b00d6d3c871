package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/internal/lab/load"
	"headgate/pkg/config"
	"headgate/pkg/status"
)

// What the commands do to a running agent, and its file.

// controlled is an agent whose file can be changed.
type controlled struct {
	*agentProcess
	file, socket string
}

func runControlled(t *testing.T, program string, h *lab.Host, yaml string, flags ...string) *controlled {
	t.Helper()
	c := launchControlled(t, program, h, yaml, flags...)
	c.await(t)
	return c
}

// launchControlled starts one, and does not wait until it protects.
func launchControlled(t *testing.T, program string, h *lab.Host, yaml string, flags ...string) *controlled {
	t.Helper()
	c := &controlled{file: filepath.Join(t.TempDir(), "headgate.yaml"), socket: filepath.Join(t.TempDir(), "run", "headgate.sock")}
	c.write(t, yaml)
	args := append([]string{"run", "-c", c.file, "--state", stateDir(), "--lease", lease.String(), "--socket", c.socket}, flags...)
	c.agentProcess = startProcess(t, program, h.Command(t.Context(), program, args...), h)
	return c
}

// write replaces the file in one step.
func (c *controlled) write(t *testing.T, yaml string) {
	t.Helper()
	if err := os.WriteFile(c.file+".new", []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(c.file+".new", c.file); err != nil {
		t.Fatal(err)
	}
}

// tell runs a command that changes the agent, and returns what it says.
func (c *controlled) tell(args ...string) (string, error) {
	return c.ask(append(args, "--socket", c.socket)...)
}

// says expects a command to succeed and to print something.
func (c *controlled) says(t *testing.T, want string, args ...string) {
	t.Helper()
	if out, err := c.tell(args...); err != nil || !strings.Contains(out, want) {
		t.Errorf("%v: %v, %q; want %q", args, err, out, want)
	}
}

// fails expects a command to fail with a code and to say why.
func (c *controlled) fails(t *testing.T, code int, want string, args ...string) {
	t.Helper()
	out, err := c.tell(args...)
	var exit interface{ ExitCode() int }
	if e, ok := err.(interface{ ExitCode() int }); ok {
		exit = e
	}
	if exit == nil || exit.ExitCode() != code || !strings.Contains(out, want) {
		t.Errorf("%v: %v, %q; want exit code %d and %q", args, err, out, code, want)
	}
}

func TestControl(t *testing.T) {
	srv, cli, to := hosts(t)
	program := buildAgent(t)
	k := keep(t, srv, "tcp", ":8080")
	const rule = `
rules:
  - name: shop
    port: 8080
    limit: {algorithm: fixed, initial: %d}
`
	c := runControlled(t, program, srv, fmt.Sprintf(rule, 2))
	admitted := func(n int) {
		t.Helper()
		k.closeAll()
		await(t, "nothing in flight", func() (any, bool) {
			k.closeAll()
			st := c.target(t)
			return st, st.InFlight == 0
		})
		crowd := newCrowd(t, cli, to, 10)
		crowd.wait(t, patience)
		if len(crowd.connected) != n || crowd.refused != 10-n {
			t.Errorf("%v; want %d connected, the others refused", crowd, n)
		}
		crowd.close()
	}
	admitted(2)

	c.says(t, "port 8080 of host, rule shop: enforce, limit 5 by hand, until it is cleared\n", "limit", "set", "8080", "5")
	admitted(5)
	if st := c.target(t); st.Limit != 5 || st.Override == nil || *st.Override.Limit != 5 || st.Override.ExpiresInSeconds != nil {
		t.Errorf("set by hand: %+v", st)
	}
	// It is kept when the file changes what it stands for.
	c.write(t, fmt.Sprintf(rule, 3))
	c.says(t, "the configuration is in force\n", "reload")
	admitted(5)
	c.says(t, "limit 3 by fixed\n", "limit", "clear", "shop")
	admitted(3)
	c.says(t, "limit 1 by hand, for 1s\n", "limit", "set", "host/8080", "1", "--for", "1s")
	admitted(1)
	await(t, "it has expired", func() (any, bool) {
		st := c.target(t)
		return st, st.Limit == 3 && st.Override == nil && strings.Contains(st.LastChange.Reason, "expired")
	})
	admitted(3)

	c.says(t, "observe, limit 3", "mode", "observe")
	time.Sleep(3 * config.Default().Window)
	before := c.target(t)
	admitted(10)
	await(t, "7 would have been refused", func() (any, bool) {
		st := c.target(t)
		return st, st.Mode == "observe" && st.WouldRejectTotal-before.WouldRejectTotal == 7 && st.RejectedTotal == before.RejectedTotal
	})
	c.says(t, "enforce, limit 3", "mode", "enforce", "shop")
	admitted(3)
	if st := c.target(t); st.Override != nil {
		t.Errorf("the mode is that of the file: %+v", st.Override)
	}

	c.fails(t, 1, "a limit of 0 refuses everybody; --force", "limit", "set", "8080", "0")
	admitted(3)
	c.says(t, "limit 0 by hand", "limit", "set", "8080", "0", "--force")
	admitted(0)
	c.says(t, "limit 3 by fixed", "limit", "clear", "8080")
	c.fails(t, 1, "no such target", "limit", "set", "8081", "5")
	c.fails(t, 1, "no such target", "mode", "observe", "nobody")
	c.fails(t, 2, "is not a limit", "limit", "set", "8080", "x")
	c.fails(t, 2, "is neither observe nor enforce", "mode", "x")
	c.fails(t, 2, "--for", "limit", "set", "8080", "5", "--for", "0s")

	client := cli.Addr4.String()
	c.says(t, "rule shop: "+client+" is exempt\n", "exempt", "add", client)
	admitted(10)
	c.says(t, "in force", "reload")
	await(t, "exempt by hand, 10 that came", func() (any, bool) {
		st := c.target(t)
		return st, st.ExemptedTotal == 10 && st.Override != nil && slices.Equal(st.Override.Exempt, []string{client + "/32"})
	})
	k.await(t, 10)
	k.closeAll()
	held := dial(t, cli, to)
	k.await(t, 1)
	if out, err := c.ask("exempt", "list", "8080"); err != nil || !strings.Contains(out, "rule shop: "+client+"/32 is exempt, by hand\n") {
		t.Errorf("exempt list: %v, %q", err, out)
	}
	c.says(t, client+" is counted", "exempt", "del", client, "shop")
	await(t, "who was exempt is counted", func() (any, bool) {
		st := c.target(t)
		return st, st.InFlight == 1
	})
	held.Close()
	admitted(3)
	c.fails(t, 1, "is not one of the networks", "exempt", "del", client, "8080")
	c.fails(t, 1, "0.0.0.0/0 exempts everybody; --force if that is meant", "exempt", "add", "0.0.0.0/0")
	c.says(t, "::/0 is exempt", "exempt", "add", "::/0", "--force")
	c.says(t, "::/0 is counted", "exempt", "del", "::/0")
	c.fails(t, 2, "the network is 10.0.0.0/8", "exempt", "add", "10.0.0.1/8")

	// A file that is wrong: the error is that of check, and nothing changes.
	c.write(t, fmt.Sprintf(rule, 4)+"  - {port: 8080}\n")
	c.fails(t, 1, "headgate.yaml:6:", "reload")
	admitted(3)
	// Nor does one that locks somebody out, the one who asks.
	c.write(t, fmt.Sprintf(rule, 4))
	cmd := srv.Command(t.Context(), program, "reload", "--socket", c.socket)
	cmd.Env = append(os.Environ(), "SSH_CONNECTION=192.0.2.1 1234 192.0.2.2 8080")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "your ssh session") {
		t.Errorf("reload from an ssh session on the port: %v, %s", err, out)
	}
	c.says(t, "in force", "reload")
	admitted(4)
	if code := c.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Lstat(c.socket); err == nil {
		t.Error("the socket is still there")
	}
	c.fails(t, 1, "no agent listens there", "reload")
}

// An agent that was killed leaves its programs: doctor says what that means.
func TestDoctorOfKilledAgent(t *testing.T) {
	srv, _, _ := hosts(t)
	program := buildAgent(t)
	c := runControlled(t, program, srv, "rules: [{name: shop, port: 8080}]\n")
	c.signal(t, syscall.SIGKILL)
	_ = c.cmd.Wait()
	await(t, "doctor says that the agent is gone", func() (any, bool) {
		out, err := srv.Command(t.Context(), program, "doctor", "--state", stateDir()).CombinedOutput()
		text := strings.Join(strings.Fields(string(out)), " ")
		return text, err != nil && strings.Contains(text, "is still there") && strings.Contains(text, "counting goes on do: start it again")
	})
}

// The window and the lease are changed as any other key, and flags hold still.
func TestReloadTimes(t *testing.T) {
	srv, cli, to := hosts(t)
	keep(t, srv, "tcp", ":8080")
	program := buildAgent(t)
	c := runControlled(t, program, srv, "window: 5s\nlease: 20s\n"+closed, "--mode", "enforce", "--lease", "20s")
	windows := func() float64 {
		n := 0.0
		for _, outcome := range []string{"empty", "changed", "unchanged"} {
			n += c.metric(t, `headgate_windows_total\{outcome="`+outcome+`".*\}`)
		}
		return n
	}
	c.write(t, "window: 20ms\nlease: 1s\nmode: observe\n"+closed)
	await(t, "windows of 20 ms", func() (any, bool) {
		was := windows()
		time.Sleep(200 * time.Millisecond)
		now := windows()
		return now - was, now-was >= 5
	})
	// Of the flags, --mode says enforce and --lease 20s, whatever the file says.
	if !knock(t, cli, to) {
		t.Error("the file took precedence over --mode")
	}
	text, err := c.ask("status", "-o", "json")
	if err != nil || !strings.Contains(text, `"lease_seconds": 20,`) {
		t.Errorf("the file took precedence over --lease: %v, %s", err, text)
	}
}

// metric is the value of a metric, by a pattern for its name and labels.
func (c *controlled) metric(t *testing.T, name string) float64 {
	t.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       c.host.Dial,
	}}
	resp, err := client.Get("http://127.0.0.1:9464/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(text)
	if found == nil {
		return 0
	}
	var v float64
	if _, err := fmt.Sscan(string(found[1]), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestReloadUnderLoad reloads as often as it can while connections come, valid
// files and broken ones in turn.
func TestReloadUnderLoad(t *testing.T) {
	const reloads, rate = 50, 2000
	srv, cli, to := hosts(t)
	program := buildAgent(t)
	httpServer(backend.Spec{Protocol: "http"})(t, srv, port)
	keep(t, srv, "tcp", ":8081")
	// The second rule shows that there is no moment without any.
	file := func(limit int) string {
		return fmt.Sprintf("window: %dms\nrules:\n"+
			"  - {name: shop, port: 8080, limit: {algorithm: fixed, initial: %d}}\n"+
			"  - {name: shut, port: 8081, limit: {algorithm: fixed, initial: 0}, force: true}\n", 20+limit%30, limit)
	}
	const broken = "rules:\n  - {name: shop, port: 8080, limit: {algorithm: fixed, initial: 0}}\n"
	c := runControlled(t, program, srv, file(5000))

	var sources []netip.Addr
	for i := range 16 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 83, 1, byte(100 + i)}), 24)
		if err := cli.AddAddr("srv", p); err != nil {
			t.Fatal(err)
		}
		sources = append(sources, p.Addr())
	}
	rec := new(load.Recorder)
	loaded := make(chan error, 1)
	during := 8 * time.Second
	go func() {
		loaded <- cli.Do(func() error {
			return load.Run(t.Context(), load.Config{
				Target:   to,
				Arrivals: load.Poisson(1, load.Step{Rate: rate, For: during}),
				Sources:  sources,
				Request:  load.Get("/"),
				Timeout:  5 * time.Second,
			}, rec.Record)
		})
	}()
	stop, probed := make(chan struct{}), make(chan int, 1)
	go func() {
		n := 0
		defer func() { probed <- n }()
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			conn, err := cli.Dial(t.Context(), "tcp", netip.AddrPortFrom(srv.Addr4, another).String())
			if err == nil {
				t.Error("admitted at a limit of 0")
				conn.Close()
			}
			n++
		}
	}()

	took := make([]time.Duration, 0, reloads)
	began := time.Now()
	for i := range reloads {
		limit, want := 5000+i, 1.0
		text := file(limit)
		if i%2 == 1 {
			text, want = broken, 0
		}
		c.write(t, text)
		at := time.Now()
		switch i % 4 { // each way of asking has files of both kinds
		case 0, 1:
			c.signal(t, syscall.SIGHUP)
		default: // nobody asks
		}
		await(t, "the metric says how the reload went", func() (any, bool) {
			got := c.metric(t, "headgate_config_last_reload_successful")
			return got, got == want && (want == 0 || c.metric(t, `headgate_limit\{.*rule="shop".*\}`) == float64(limit))
		})
		took = append(took, time.Since(at))
	}
	spent := time.Since(began)
	if spent > during {
		t.Logf("the load was over after %v", during)
	}
	close(stop)
	probes := <-probed
	if err := <-loaded; err != nil {
		t.Fatal(err)
	}
	counts := rec.Counts()
	t.Logf("%d reloads in %v, half after %v; %d connections of 2000 a second, %d probes of a shut port; %+v",
		reloads, spent, quantile(took, 0.5), counts.Arrived, probes, counts)
	if counts.Refused > 0 || counts.Reset > 0 || counts.Failed > 0 || counts.Answered == 0 {
		t.Errorf("refused or reset: %+v", counts)
	}
	await(t, "the counts are those of the clients", func() (any, bool) {
		st := c.targetOf(t, "shop")
		return st, st.InFlight == 0 && st.AdmittedTotal == st.FinishedTotal && st.AdmittedTotal >= counts.Answered &&
			st.AdmittedTotal <= counts.Arrived && rejectedInAll(st) == 0
	})
	if st := c.targetOf(t, "shut"); int(st.RejectedTotal.Limit) < probes || st.AdmittedTotal != 0 {
		t.Errorf("%d probes: %+v", probes, st)
	}
	if got := c.metric(t, "headgate_config_last_reload_success_timestamp_seconds"); got < float64(began.Unix()) {
		t.Errorf("the last successful reload was at %v", got)
	}
}

// targetOf is what headgate status shows of a rule with one port.
func (c *controlled) targetOf(t *testing.T, rule string) status.Target {
	t.Helper()
	for _, st := range c.status(t).Targets {
		if st.Rule == rule {
			return st
		}
	}
	t.Fatalf("no rule %s", rule)
	return status.Target{}
}

// Who stops reading the log of an agent, or is gone, does not stop the agent.
func TestLogIsNotRead(t *testing.T) {
	srv, _, _ := hosts(t)
	program := buildAgent(t)
	file, socket := filepath.Join(t.TempDir(), "headgate.yaml"), filepath.Join(t.TempDir(), "headgate.sock")
	c := &controlled{file: file, socket: socket}
	c.write(t, "rules: [{name: shop, port: 8080, limit: {algorithm: fixed, initial: 1}}]")
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	// Of the least size that there is, a page.
	if _, err := unix.FcntlInt(writer.Fd(), unix.F_SETPIPE_SZ, 1); err != nil {
		t.Fatal(err)
	}
	cmd := srv.Command(t.Context(), "/bin/sh", append([]string{"-c", `exec "$@" 2>&3`, "sh", program},
		"run", "-c", file, "--state", stateDir(), "--socket", socket)...)
	cmd.ExtraFiles = []*os.File{writer}
	c.agentProcess = startProcess(t, program, cmd, srv)
	writer.Close()
	await(t, "the agent is there", func() (any, bool) {
		out, err := c.tell("limit", "set", "8080", "2")
		return out, err == nil
	})
	limits := func(n int) {
		t.Helper()
		for i := range n { // a line of 150 bytes each
			c.says(t, "by hand", "limit", "set", "8080", fmt.Sprint(i+3))
		}
		if st := c.status(t); st.LeaseAgeSeconds > config.Default().Lease.Seconds() {
			t.Errorf("the lease is %v s old", st.LeaseAgeSeconds)
		}
	}
	limits(30)
	reader.Close()
	limits(2)
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("the agent ends with %v", err)
	}
}
