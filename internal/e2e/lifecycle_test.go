package e2e

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"headgate/internal/lab"
)

// lease is the shortest that an agent takes.
const lease = time.Second

// closed is a rule that lets nobody in.
const closed = `
rules:
  - name: shop
    port: 8080
    limit: {algorithm: fixed, initial: 0}
    force: true
`

// open is a rule that lets everybody in.
const open = `
rules:
  - name: shop
    port: 8080
    limit: {algorithm: fixed, initial: 10000}
`

// inKernel is how many connections the programs count now, with or without
// an agent.
func inKernel(t *testing.T) int {
	t.Helper()
	m := openMap(t, "states")
	defer m.Close()
	state := make([]byte, m.ValueSize())
	if err := m.Lookup(uint32(0), state); err != nil {
		t.Fatal(err)
	}
	return int(binary.NativeEndian.Uint32(state)) // units, in the low half
}

// knock tries to connect. It says whether that was refused, and closes
// nothing: who was admitted stays.
func knock(t *testing.T, from *lab.Host, to netip.AddrPort) (refused bool) {
	t.Helper()
	c, err := from.Dial(t.Context(), "tcp", to.String())
	if errors.Is(err, syscall.ECONNREFUSED) {
		return true
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return false
}

// gateOpens checks that the gate stays closed for as long as a lease that was
// renewed a window ago, and opens then.
func gateOpens(t *testing.T, cli *lab.Host, to netip.AddrPort, since time.Time) {
	t.Helper()
	for time.Since(since) < lease/2 {
		if !knock(t, cli, to) && time.Since(since) < lease/2 {
			t.Fatalf("admitted %v after the last sign of the agent, at a lease of %v", time.Since(since), lease)
		}
		time.Sleep(20 * time.Millisecond)
	}
	for knock(t, cli, to) {
		if time.Since(since) > lease+250*time.Millisecond {
			t.Fatalf("refused %v after the last sign of the agent, at a lease of %v", time.Since(since), lease)
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("the gate opened after %v, at a lease of %v", time.Since(since), lease)
}

// exact checks the count of the programs against the kernel's own sockets.
func exact(t *testing.T, srv *lab.Host) {
	t.Helper()
	await(t, "the count is that of the kernel", func() (any, bool) {
		counted, real := inKernel(t), connections(t, srv, port)
		return [2]int{counted, real}, counted == real
	})
}

func TestLifecycle(t *testing.T) {
	lab.ForTest(t, "any") // skips without root
	program := buildAgent(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, string)
	}{
		{"killed", testKilled},
		{"hung", testHung},
		{"adoption", testAdoption},
		{"adoption under churn", testAdoptionUnderChurn},
		{"clean stop", testCleanStop},
		{"keep", testKeep},
		{"three capabilities", testCapabilities},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, program) })
	}
}

func testKilled(t *testing.T, program string) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	k := keep(t, srv, "tcp", ":8080")
	to := netip.AddrPortFrom(srv.Addr4, port)
	for range 10 {
		dial(t, cli, to)
	}
	k.await(t, 10)
	first := runAgent(t, program, srv, closed)
	if !knock(t, cli, to) {
		t.Fatal("admitted at a limit of 0")
	}
	first.signal(t, syscall.SIGKILL)
	gateOpens(t, cli, to, time.Now())

	// Nobody is there: some come, some go.
	for range 7 {
		dial(t, cli, to)
	}
	k.await(t, connections(t, srv, port))
	k.close(3)
	exact(t, srv)

	second := runAgent(t, program, srv, closed)
	if !knock(t, cli, to) {
		t.Error("admitted at a limit of 0 by the second agent")
	}
	st, n := second.target(t), connections(t, srv, port)
	if st.InFlight != n || int(st.AdmittedTotal) != n+3 || st.FinishedTotal != 3 || st.RejectedTotal.Limit == 0 {
		t.Errorf("the kernel has %d connections, 3 ended; status %+v", n, st)
	}
	k.closeAll()
	await(t, "none in flight", func() (any, bool) {
		st := second.target(t)
		return st, st.InFlight == 0 && int(st.FinishedTotal) == n+3
	})
}

func testHung(t *testing.T, program string) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	k := keep(t, srv, "tcp", ":8080")
	to := netip.AddrPortFrom(srv.Addr4, port)
	p := runAgent(t, program, srv, closed)
	if !knock(t, cli, to) {
		t.Fatal("admitted at a limit of 0")
	}
	p.signal(t, syscall.SIGSTOP)
	gateOpens(t, cli, to, time.Now())
	for range 7 {
		dial(t, cli, to)
	}
	n := connections(t, srv, port)
	k.await(t, n)
	k.close(3)
	exact(t, srv)

	p.signal(t, syscall.SIGCONT)
	begin := time.Now()
	for !knock(t, cli, to) {
		if time.Since(begin) > time.Second {
			t.Fatalf("not enforced %v after the agent went on", time.Since(begin))
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("enforced again after %v", time.Since(begin))
	await(t, "the status is right", func() (any, bool) {
		st, n := p.target(t), connections(t, srv, port)
		return st, st.InFlight == n && int(st.AdmittedTotal) == n+3 && st.FinishedTotal == 3
	})
}

func testAdoption(t *testing.T, program string) {
	const n = 200
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	k := keep(t, srv, "tcp", ":8080")
	for i := range n {
		addr := srv.Addr4
		if i%2 == 1 {
			addr = srv.Addr6
		}
		dial(t, cli, netip.AddrPortFrom(addr, port))
	}
	k.await(t, n)
	p := runAgent(t, program, srv, open)
	if st := p.target(t); st.InFlight != n || st.AdmittedTotal != n || st.Pending != 0 {
		t.Errorf("%d connections were there; status %+v", n, st)
	}
	k.close(n / 4)
	await(t, "a quarter is gone", func() (any, bool) {
		st := p.target(t)
		return st, st.InFlight == n-n/4 && st.FinishedTotal == n/4
	})
	k.closeAll()
	await(t, "none in flight", func() (any, bool) {
		st := p.target(t)
		return st, st.InFlight == 0 && st.FinishedTotal == n
	})
}

// testAdoptionUnderChurn starts agents while connections come and go.
func testAdoptionUnderChurn(t *testing.T, program string) {
	const kept, starts = 200, 3
	srv, cli, to := hosts(t)
	serveUntilEOF(t, srv)
	var stay []net.Conn
	for range kept {
		stay = append(stay, dial(t, cli, to))
	}

	for range starts {
		stop := make(chan struct{})
		var churners sync.WaitGroup
		var made atomic.Int64
		for range 2 {
			churners.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					c, err := cli.Dial(t.Context(), "tcp", to.String())
					if err != nil {
						t.Error(err)
						return
					}
					c.Close()
					made.Add(1)
				}
			})
		}
		time.Sleep(50 * time.Millisecond)
		p := runAgent(t, program, srv, open)
		close(stop)
		churners.Wait()
		exact(t, srv)
		await(t, "those that stay are counted", func() (any, bool) {
			st := p.target(t)
			return st, st.InFlight == kept && st.AdmittedTotal-st.FinishedTotal == kept
		})
		t.Logf("adopted among %d connections that came and went", made.Load())
		if code := p.stop(t); code != 0 {
			t.Fatalf("exit code %d", code)
		}
	}
	p := runAgent(t, program, srv, open)
	for _, c := range stay {
		c.Close()
	}
	await(t, "none in flight", func() (any, bool) {
		st := p.target(t)
		return st, st.InFlight == 0
	})
}

// whole is what an agent has attached, by program: one for each hook.
var whole = map[string]int{
	"headgate_ingress": 1, "headgate_egress": 1, "headgate_sockops": 1, "headgate_release": 1, "headgate_lookup": 1,
}

func testCleanStop(t *testing.T, program string) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	keep(t, srv, "tcp", ":8080")
	to := netip.AddrPortFrom(srv.Addr4, port)
	p := runAgent(t, program, srv, closed)
	ours := pinnedMaps(t)
	if got := attachedPrograms(t, ours); !maps.Equal(got, whole) {
		t.Errorf("attached: %v, want %v", got, whole)
	}
	if !knock(t, cli, to) {
		t.Error("admitted at a limit of 0")
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	nothingLeft(t, ours)
	if knock(t, cli, to) {
		t.Error("refused after the agent has ended")
	}
}

func nothingLeft(t *testing.T, ours map[ebpf.MapID]bool) {
	t.Helper()
	if got := attachedPrograms(t, ours); len(got) > 0 {
		t.Errorf("attached after the end: %v", got)
	}
	await(t, "no program is left", func() (any, bool) {
		names := loadedPrograms(t, ours)
		return names, len(names) == 0
	})
	if _, err := os.Stat(stateDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state directory after the end: %v", err)
	}
}

func testKeep(t *testing.T, program string) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	k := keep(t, srv, "tcp", ":8080")
	to := netip.AddrPortFrom(srv.Addr4, port)
	first := runAgent(t, program, srv, open, "--keep")
	dial(t, cli, to)
	ours := pinnedMaps(t)
	if code := first.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got := attachedPrograms(t, ours); !maps.Equal(got, whole) {
		t.Errorf("attached after a stop with --keep: %v, want %v", got, whole)
	}
	dial(t, cli, to)
	k.await(t, 2)
	former := programsWith(t, ours)

	second := runAgent(t, program, srv, open)
	if got := pinnedMaps(t); !maps.Equal(got, ours) {
		t.Errorf("the maps of the second agent are %v, of the first %v", got, ours)
	}
	if got := attachedPrograms(t, ours); !maps.Equal(got, whole) {
		t.Errorf("attached by the second agent: %v, want %v", got, whole)
	}
	if st := second.target(t); st.InFlight != 2 || st.AdmittedTotal != 2 {
		t.Errorf("2 connections came under the first agent and after it; status %+v", st)
	}
	await(t, "the first agent's programs are gone", func() (any, bool) {
		now := programsWith(t, ours)
		maps.DeleteFunc(now, func(id ebpf.ProgramID, _ string) bool { return former[id] == "" })
		return now, len(now) == 0
	})
	if code := second.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	nothingLeft(t, ours)
}

// testCapabilities runs an agent as nobody, with no more rights than it needs
// where its rules are of the host.
func testCapabilities(t *testing.T, program string) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	k := keep(t, srv, "tcp", ":8080")
	to := netip.AddrPortFrom(srv.Addr4, port)
	dial(t, cli, to)
	k.await(t, 1)
	// By its path: see unprivileged.
	cmd := srv.Command(t.Context(), program, "run", "-p", "8080")
	inShell(cmd, `mount -t bpf -o mode=1777 bpf /sys/fs/bpf &&
		exec /usr/bin/setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps="$0" --ambient-caps="$0" --bounding-set="-all,$0" "$@"`,
		"+bpf,+net_admin,+perfmon")
	p := startProcess(t, program, cmd, srv)
	p.await(t)
	hasRights(t, p.cmd.Process.Pid, threeRights)
	dial(t, cli, to)
	await(t, "both connections are counted", func() (any, bool) {
		st := p.target(t)
		return st, st.InFlight == 2 && st.AdmittedTotal == 2
	})
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
