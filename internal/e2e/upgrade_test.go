package e2e

import (
	"bytes"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
)

// comersRate is how many connections a second these tests live under.
const comersRate = 2000

// longLease is one within which the next agent is there.
func longLease() string { return lab.Allow(3 * time.Second).String() }

// stayers is how many connections stay open all the time.
const stayers = 50

// besieged is a server under load, whose first port is open and whose second
// lets nobody in.
type besieged struct {
	srv, cli  *lab.Host
	comers    *comers
	gatewatch *gatewatch
}

// besiege has load on a server before any agent is there, and connections that
// stay. The gatewatch is started by the caller, when there is one to watch.
func besiege(t *testing.T) *besieged {
	t.Helper()
	srv, cli, to := hosts(t)
	serveUntilEOF(t, srv)
	keep(t, srv, "tcp", ":8081")
	for range stayers {
		dial(t, cli, to)
	}
	return &besieged{srv: srv, cli: cli, comers: comeAndGo(t, cli, to, 4, comersRate)}
}

func (b *besieged) watch(t *testing.T) {
	b.gatewatch = watchGate(t, b.cli, netip.AddrPortFrom(b.srv.Addr4, 8081))
}

// end checks that all is at rest, and says what the load was.
func (b *besieged) end(t *testing.T, p *agentProcess) {
	t.Helper()
	n, rate := b.comers.stop()
	t.Logf("%d connections, %.0f a second; %d knocks at the closed gate", n, rate, b.gatewatch.knocks.Load())
	exact(t, b.srv)
	p.counts(t, b.comers, b.srv, stayers)
	least := comersRate / 2.0
	if lab.Slow() {
		least = comersRate / 4
	}
	if rate < least {
		t.Errorf("%.0f connections a second are no load", rate)
	}
}

// An agent that is killed under load, again and again: one program at each hook,
// no count lost, nobody refused who is to come in, and, since the next agent is
// there within the lease, nobody let in who is not.
func TestKilledUnderLoad(t *testing.T) {
	lab.ForTest(t, "any")
	program := buildAgent(t)
	b := besiege(t)
	flags := []string{"--lease", longLease()}
	p := runAgent(t, program, b.srv, openAndClosed, flags...)
	b.watch(t)
	ours := pinnedMaps(t)
	for range 5 {
		time.Sleep(200 * time.Millisecond)
		p.counts(t, b.comers, b.srv, stayers)
		p.signal(t, syscall.SIGKILL)
		_ = p.cmd.Wait()
		if got := attachedPrograms(t, ours); !maps.Equal(got, wholeHold) {
			t.Errorf("attached after a kill: %v, want %v", got, wholeHold)
		}
		p = runAgent(t, program, b.srv, openAndClosed, flags...)
		if got := attachedPrograms(t, ours); !maps.Equal(got, wholeHold) {
			t.Errorf("attached by the next agent: %v, want %v", got, wholeHold)
		}
		p.counts(t, b.comers, b.srv, stayers)
	}
	if gap := b.gatewatch.gapSince(); gap > 0 {
		t.Errorf("the closed gate was open for %v", gap)
	}
	b.end(t, p)
}

// An agent that hangs for three leases: the gates open when the first ends, and
// close when it goes on; what came and went meanwhile is counted.
func TestHungUnderLoad(t *testing.T) {
	lab.ForTest(t, "any")
	b := besiege(t)
	p := runAgent(t, buildAgent(t), b.srv, openAndClosed)
	b.watch(t)
	ours := pinnedMaps(t)
	time.Sleep(200 * time.Millisecond)
	if gap := b.gatewatch.gapSince(); gap > 0 {
		t.Errorf("the closed gate was open for %v", gap)
	}
	p.signal(t, syscall.SIGSTOP)
	time.Sleep(3 * lease)
	p.signal(t, syscall.SIGCONT)
	await(t, "the gate is closed again", func() (any, bool) {
		b.gatewatch.mu.Lock()
		defer b.gatewatch.mu.Unlock()
		return b.gatewatch.open, !b.gatewatch.open
	})
	if gap := b.gatewatch.gapSince(); gap < lease || gap > 3*lease {
		t.Errorf("the closed gate was open for %v of %v", gap, 3*lease)
	}
	time.Sleep(200 * time.Millisecond)
	if gap := b.gatewatch.gapSince(); gap > 0 {
		t.Errorf("the closed gate was open for %v after the agent went on", gap)
	}
	if got := attachedPrograms(t, ours); !maps.Equal(got, wholeHold) {
		t.Errorf("attached: %v, want %v", got, wholeHold)
	}
	b.end(t, p)
}

// Upgrades and a downgrade of the real program, under load: to one whose maps
// are the same, to one where a value has another field, and back.
func TestUpgradeUnderLoad(t *testing.T) {
	lab.ForTest(t, "any")
	first, other := buildAgent(t), buildChanged(t)
	b := besiege(t)
	flags := []string{"--keep", "--lease", longLease()}
	p := runAgent(t, first, b.srv, openAndClosed, flags...)
	b.watch(t)
	ours := pinnedMaps(t)
	for _, step := range []struct {
		name, program string
		changed       bool
	}{
		{"the same", first, false},
		{"another layout", other, true},
		{"the first again", first, true},
	} {
		time.Sleep(300 * time.Millisecond)
		second := launch(t, step.program, b.srv, openAndClosed, "--listen", "127.0.0.1:9465")
		if _ = second.cmd.Wait(); second.cmd.ProcessState.ExitCode() == 0 || !strings.Contains(second.log.String(), "another headgate agent is running (pid") {
			t.Errorf("%s: a second agent beside the first ends with %v: %s", step.name, second.cmd.ProcessState, second.log.String())
		}
		b.gatewatch.gapSince()
		if code := p.stop(t); code != 0 {
			t.Errorf("exit code %d", code)
		}
		p = runAgent(t, step.program, b.srv, openAndClosed, flags...)
		p.counts(t, b.comers, b.srv, stayers)
		gap := b.gatewatch.gapSince()
		t.Logf("%s: the closed gate was open for %v", step.name, gap)
		if gap > 50*time.Millisecond {
			t.Errorf("%s: the closed gate was open for %v", step.name, gap)
		}
		now := pinnedMaps(t)
		if maps.Equal(now, ours) == step.changed {
			t.Errorf("%s: maps %v, before %v", step.name, now, ours)
		}
		ours = now
		if got := attachedPrograms(t, ours); !maps.Equal(got, wholeHold) {
			t.Errorf("%s: attached %v, want %v", step.name, got, wholeHold)
		}
	}
	b.end(t, p)
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if said := p.log.String(); !strings.Contains(said, "map conns") || !strings.Contains(said, "novelty") {
		t.Errorf("the log does not say what differs: %s", said)
	}
}

// buildChanged builds the program from a copy of its sources in which the record
// of a connection has one field more.
func buildChanged(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(in, name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = in
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	for _, part := range []string{"go.mod", "go.sum", "bpf", "pkg", "cmd", "internal"} {
		run(root, "cp", "-a", part, dir)
	}
	types := filepath.Join(dir, "bpf", "types.h")
	text, err := os.ReadFile(types)
	if err != nil {
		t.Fatal(err)
	}
	const field = "struct conn {\n"
	if bytes.Count(text, []byte(field)) != 1 {
		t.Fatalf("no struct conn in %s", types)
	}
	text = bytes.Replace(text, []byte(field), []byte(field+"\t__u64 novelty;\n"), 1)
	if err := os.WriteFile(types, text, 0o644); err != nil {
		t.Fatal(err)
	}
	run(filepath.Join(dir, "pkg", "loader"), "go", "generate", "gen.go")
	path := filepath.Join(dir, "headgate")
	run(dir, "go", "build", "-o", path, "./cmd/agent")
	return path
}
