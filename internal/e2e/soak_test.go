package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
)

// remaining is how many connections stay all the time, fewer than any limit that
// is drawn has room for.
const remaining = 5

// durationEnv says how long [TestSoak] goes on.
const durationEnv = "HEADGATE_SOAK"

// soak is a server under load with an agent to which everything happens.
type soak struct {
	*testing.T
	*rand.Rand
	srv, cli *lab.Host
	to       netip.AddrPort
	comers   *comers
	program  string
	agent    *controlled
	houses   []*house
	pgbench  *lab.Cmd
	ctx      context.Context // of the houses
	kept     bool            // the agent leaves its programs when it is told to end
	rules    string
	before   string // the rules before these
}

// happenings are what may happen. What is added here happens from then on.
var happenings = []struct {
	name string
	do   func(*soak)
}{
	{"kill", func(s *soak) { s.end(syscall.SIGKILL); s.draw(); s.begin() }},
	{"stop", func(s *soak) { s.end(syscall.SIGTERM); s.draw(); s.begin() }},
	{"hang", func(s *soak) {
		s.agent.signal(s.T, syscall.SIGSTOP)
		time.Sleep(lease / 10)
		s.wait(3*lease - lease/10)
		s.agent.signal(s.T, syscall.SIGCONT)
	}},
	{"a server hangs", func(s *soak) {
		h := s.houses[s.IntN(len(s.houses))]
		s.tell(h, syscall.SIGSTOP)
		s.wait(lease)
		s.tell(h, syscall.SIGCONT)
	}},
	{"a server begins anew", func(s *soak) {
		h := s.houses[0] // who comes meanwhile is refused, rightly
		if err := h.daemon.Stop(); err != nil {
			s.Fatal(err)
		}
		s.wait(lease / 2)
		h.daemon = h.start(s.ctx, s.T, s.srv, int(h.port))
	}},
	{"reload", func(s *soak) { s.reload(1) }},
	{"kill in a reload", func(s *soak) {
		s.reload(30 * time.Millisecond)
		s.end(syscall.SIGKILL)
		s.draw()
		s.begin()
	}},
	{"hang in a reload", func(s *soak) {
		s.reload(30 * time.Millisecond)
		s.agent.signal(s.T, syscall.SIGSTOP)
		s.wait(3 * lease)
		s.agent.signal(s.T, syscall.SIGCONT)
	}},
	{"kill as it begins", func(s *soak) {
		for range 1 + s.IntN(4) {
			s.end(syscall.SIGKILL)
			s.draw()
			s.launch()
			s.wait(300 * time.Millisecond)
		}
		s.end(syscall.SIGKILL)
		s.begin()
	}},
	{"reloads", func(s *soak) {
		for range 2 + s.IntN(8) {
			s.draw()
			s.agent.write(s.T, s.rules)
			_, _ = s.agent.tell("reload") // refused if it takes a right that this one has given up
		}
	}},
	{"bad file", func(s *soak) { s.agent.write(s.T, "rules: [{port: 8080, limit: {initial: -1}}]") }},
	{"limit", func(s *soak) { s.say("limit", "set", strconv.Itoa(port), strconv.Itoa(1+s.IntN(100)), "--for", "1s") }},
	{"no limit by hand", func(s *soak) { s.say("limit", "clear", strconv.Itoa(port)) }},
	{"observe", func(s *soak) { s.say("mode", "observe") }},
	{"enforce", func(s *soak) { s.say("mode", "enforce") }},
	{"flood", func(s *soak) {
		s.comers.mayEnd(lab.Allow(10 * time.Second))
		for range 200 + s.IntN(2000) {
			s.spoof()
		}
	}},
	{"nothing", func(*soak) {}},
}

// wait waits for up to d.
func (s *soak) wait(d time.Duration) { time.Sleep(time.Duration(s.Int64N(int64(d)))) }

// draw draws a rule.
func (s *soak) draw() {
	s.before = s.rules
	s.rules = fmt.Sprintf("window: 20ms\nrules:\n- name: shop\n  port: %d\n  limit: {algorithm: fixed, initial: %d}\n", port, 2*remaining+s.IntN(40))
	switch s.IntN(4) {
	case 0:
		s.rules += fmt.Sprintf("  hold: {max_wait: %dms}\n", 10+s.IntN(500))
	case 1:
		s.rules += fmt.Sprintf("  pace: {rate: %d, max_wait: 100ms}\n", 100+s.IntN(2000))
	case 2:
		s.rules += "  reject: drop\n"
	}
	for _, h := range s.houses {
		s.rules += h.rule(s.Rand)
	}
}

// reload gives the agent another rule, and waits for up to d.
func (s *soak) reload(d time.Duration) {
	s.Helper()
	s.draw()
	s.agent.write(s.T, s.rules)
	s.agent.signal(s.T, syscall.SIGHUP)
	s.wait(d)
}

// begin starts an agent, and waits until it protects.
func (s *soak) begin() {
	s.Helper()
	s.launch()
	s.agent.await(s.T)
}

// launch starts an agent.
func (s *soak) launch() {
	s.Helper()
	var flags []string
	if s.kept = s.IntN(2) == 0; s.kept {
		flags = []string{"--keep"}
	}
	s.agent = launchControlled(s.T, s.program, s.srv, s.rules, flags...)
}

// end ends the agent, and lets there be none for a while.
func (s *soak) end(how syscall.Signal) {
	s.Helper()
	s.agent.signal(s.T, how)
	_ = s.agent.cmd.Wait()
	if code := s.agent.cmd.ProcessState.ExitCode(); how == syscall.SIGTERM && code != 0 {
		s.Errorf("exit code %d: %s", code, &s.agent.log)
	}
	s.wait(2 * lease)
}

// say gives the agent a command.
func (s *soak) say(args ...string) {
	s.Helper()
	if out, err := s.agent.tell(args...); err != nil {
		s.Errorf("%v: %v: %s", args, err, out)
	}
}

// tell sends a server a signal.
func (s *soak) tell(h *house, what syscall.Signal) {
	s.Helper()
	if err := syscall.Kill(h.daemon.PID(), what); err != nil {
		s.Fatal(err)
	}
}

// spoof sends a SYN that nobody follows up.
func (s *soak) spoof() {
	s.Helper()
	err := s.cli.SendSegment(lab.Segment{
		Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{20, byte(s.IntN(256)), byte(s.IntN(256)), byte(s.IntN(256))}), 1000),
		Dst: s.to, Flags: lab.SYN, Seq: s.Uint32(),
	})
	if err != nil {
		s.Fatal(err)
	}
}

// check compares, with nobody there but those that stay, what agent, programs
// and kernel count.
func (s *soak) check() {
	s.Helper()
	s.comers.atRest(func() {
		awaitFor(s.T, 2*patience, "agent, programs and kernel agree", func() (any, bool) {
			st, real := s.agent.targets(s.T)[port], connections(s.T, s.srv, port)
			counted, waiting := kernelUnits(s.T)
			return []any{real, counted, waiting, st}, real == remaining && counted == remaining && waiting == 0 &&
				st.InFlight == remaining && st.Pending == 0
		})
		s.compare()
		for _, st := range s.agent.targets(s.T) {
			if r := st.Recount; r.InFlight != 0 || r.Waiting != 0 || r.Pending != 0 || r.Connections != 0 || r.Idle != 0 {
				s.Errorf("%s: a recount has found drift: %+v", st.Rule, r)
			}
		}
	})
}

// descriptors is how many file descriptors of each kind the agent has open.
func (s *soak) descriptors() map[string]int {
	s.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(s.agent.cmd.Process.Pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		s.Fatal(err)
	}
	kinds := make(map[string]int)
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			kind, _, _ := strings.Cut(to, ":[") // socket:[4711]
			kinds[kind]++
		}
	}
	return kinds
}

// Kills, stops, hangs, reloads, commands, floods, in an order that is drawn, under
// load: each time that things calm down the counts are exact, and in the end
// nothing is left and nothing has leaked.
func TestSoak(t *testing.T) {
	during, err := time.ParseDuration(os.Getenv(durationEnv))
	if err != nil {
		t.Skipf("a long one: runs with %s=DURATION, as by make soak", durationEnv)
	}
	seed := seedOf(t)
	srv, cli, to := hosts(t)
	s := &soak{T: t, Rand: rand.New(rand.NewPCG(seed, 0)), srv: srv, cli: cli, to: to, program: buildAgent(t), houses: houses()}
	serveUntilEOF(t, srv)
	for range remaining {
		dial(t, cli, to)
	}
	s.comers = comeAndGoIf(t, cli, to, 8, 500, true)
	leave := s.open(seed)
	s.draw()
	s.begin()
	counts := make(map[string]int)
	begin, said := time.Now(), time.Now()
	var lately []string
	for n := 1; time.Since(begin) < during && !t.Failed(); n++ {
		h := happenings[s.IntN(len(happenings))]
		counts[h.name]++
		lately = append(lately[max(0, len(lately)-9):], fmt.Sprintf("%v %s", time.Since(begin).Round(time.Millisecond), h.name))
		h.do(s)
		s.wait(300 * time.Millisecond)
		if n%5 == 0 {
			s.check()
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			fmt.Printf("%v: %d happenings, %d connections, %d refused\n", time.Since(begin).Round(time.Second), n, s.comers.made.Load(), s.comers.out.Load())
		}
	}
	t.Logf("the last happenings: %q, the last rules:\n%s\n%s", lately, s.before, s.rules)
	t.Logf("%v; %d connections, %d refused", counts, s.comers.made.Load(), s.comers.out.Load())
	for _, h := range s.houses {
		t.Logf("%s: %d answers, %d refused", h.name, h.served.Load(), h.refused.Load())
	}
	s.check()
	s.comers.stop()
	leave()

	// The last one can hold, which takes rights that others give up, and takes all
	// away when it ends.
	rules := "window: 20ms\nrules:\n- name: shop\n  port: 8080\n  limit: {algorithm: fixed, initial: 100}\n"
	s.rules = rules + "  hold: {max_wait: 1s}\n"
	for s.end(syscall.SIGKILL); ; s.end(syscall.SIGKILL) {
		if s.begin(); !s.kept {
			break
		}
	}
	// What an agent has open after a dozen reloads is what it has after one.
	reload := func() {
		for _, more := range []string{"  hold: {max_wait: 1s}\n", ""} {
			s.agent.write(t, rules+more)
			s.say("reload")
		}
	}
	reload()
	time.Sleep(time.Second)
	first := s.descriptors()
	for range 12 {
		reload()
	}
	await(t, fmt.Sprintf("no more file descriptors are open than before a dozen reloads, %v", first), func() (any, bool) {
		now := s.descriptors()
		for kind, n := range now {
			if n > first[kind]+2 {
				return now, false
			}
		}
		return now, true
	})
	ours := pinnedMaps(t)
	if code := s.agent.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	nothingLeft(t, ours)
}
