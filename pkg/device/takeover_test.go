package device

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// An agent that is killed and started again finds its programs and replaces
// them: there is one on each device, and a packet is counted once, throughout.
func TestKilledFiveTimes(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		t.Run(fmt.Sprint("legacy ", legacy), func(t *testing.T) {
			b := newBench(t)
			want := b.want(legacy)
			b.veth("v0", "v1")
			check := func(when string) {
				t.Helper()
				for _, name := range []string{"lo", "v0", "v1"} {
					if got := b.programs(name); !slices.Equal(got, want) {
						t.Errorf("%s: on %s are %q, want %q", when, name, got, want)
					}
				}
				if got := b.sendToSelf(20); got != 20 {
					t.Errorf("%s: 20 packets counted as %d", when, got)
				}
			}
			for i := range 5 {
				// Each second one is an upgrade: a program of another tag.
				kill, _ := b.start(i/2, legacy, false)
				check(fmt.Sprint("run ", i))
				kill()
				check(fmt.Sprint("after kill ", i))
			}
			if want[0] == "filter hg_test" {
				progs, _ := pins{b.dir, b.ns.Cookie()}.list(progPin)
				if len(progs) != 1 {
					t.Errorf("%d programs are kept", len(progs))
				}
			}
			if _, err := exec.LookPath("bpftool"); err == nil {
				shown := b.output("bpftool", "net", "show")
				n := strings.Count(shown, "hg_test") + strings.Count(shown, filterName)
				if n == 0 && want[0] == "tcx hg_test" {
					t.Log("this bpftool does not know TCX")
				} else if n != 3 {
					t.Errorf("bpftool shows %d programs of ours on 3 devices:\n%s", n, shown)
				}
			}
			_, end := b.start(9, legacy, true)
			end()
			for _, name := range []string{"lo", "v0", "v1"} {
				if got := b.programs(name); len(got) > 0 {
					t.Errorf("on %s are %q after all was detached", name, got)
				}
			}
			if got := b.pins(); len(got) > 0 {
				t.Errorf("left: %q", got)
			}
			if got := b.output("tc", "qdisc", "show"); strings.Contains(got, "clsact") {
				t.Errorf("left: %s", got)
			}
		})
	}
}

// However far an agent had come when it was killed, the next one makes it
// whole, and leaves nothing.
func TestKilledAnywhere(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		b := newBench(t)
		for i := range 6 {
			b.veth(fmt.Sprint("v", i), fmt.Sprint("p", i))
		}
		halfway := 0
		for run := range 15 {
			pins := b.pins()
			kill := b.launch(spec{Name: fmt.Sprint("run", run), Legacy: legacy})
			// Begun when it notes something, or a while after its start.
			begun := time.Now().Add(time.Duration(5+rand.IntN(40)) * time.Millisecond)
			for time.Now().Before(begun) && slices.Equal(pins, b.pins()) {
			}
			time.Sleep(time.Duration(rand.IntN(1500)) * time.Microsecond)
			kill()
			seen := map[string]bool{}
			for i := range 6 {
				got := b.programs(fmt.Sprint("v", i))
				if len(got) > 1 {
					t.Errorf("on one device: %q", got)
				}
				seen[fmt.Sprint(got)] = true
			}
			if len(seen) > 1 {
				halfway++
			}
		}
		t.Logf("legacy %v: %d of 15 killed when some devices were done", legacy, halfway)
		_, end := b.start(1, legacy, true)
		for i := range 6 {
			if got := b.programs(fmt.Sprint("v", i)); len(got) != 1 {
				t.Errorf("on one device: %q", got)
			}
		}
		end()
		if got := b.pins(); len(got) > 0 {
			t.Errorf("left: %q", got)
		}
		if got := b.output("tc", "qdisc", "show"); strings.Contains(got, "clsact") {
			t.Errorf("left: %s", got)
		}
	}
}

// A predecessor that used the other way is replaced as well.
func TestOtherWayBefore(t *testing.T) {
	b := newBench(t)
	b.needTCX()
	for i, legacy := range []bool{false, true, false, true} {
		a := b.attacher(0, Options{ForceLegacy: legacy})
		b.must(a.Sync())
		want := map[bool]string{false: "tcx hg_test", true: "filter hg_test"}[legacy]
		if got := b.programs("lo"); !slices.Equal(got, []string{want}) {
			t.Errorf("round %d: %q, want %q", i, got, want)
		}
		if got := a.Attached(); len(got) != 1 || (got[0].Method == Legacy) != legacy {
			t.Errorf("Attached() = %v", got)
		}
	}
}

// When the pins are lost, filters of the same program are still known.
func TestPinsLost(t *testing.T) {
	b := newBench(t)
	b.must(b.attacher(0, Options{ForceLegacy: true}).Sync())
	for _, name := range b.pins() {
		b.must(remove(b.dir + "/" + name))
	}
	a := b.attacher(0, Options{ForceLegacy: true})
	b.must(a.Sync())
	if got := b.programs("lo"); !slices.Equal(got, []string{"filter hg_test"}) {
		t.Errorf("programs: %q", got)
	}
	b.must(a.Detach())
	if got := b.programs("lo"); len(got) > 0 {
		t.Errorf("programs: %q", got)
	}
}

// What somebody else removes comes back, with one line.
func TestTakenAway(t *testing.T) {
	b := newBench(t)
	a := b.attacher(0, Options{ForceLegacy: true})
	b.must(a.Sync())
	b.output("tc", "qdisc", "del", "dev", "lo", "clsact")
	b.must(a.Sync())
	if got := b.programs("lo"); !slices.Equal(got, []string{"filter hg_test"}) {
		t.Errorf("programs: %q", got)
	}
	if got := b.log.atLeast(slog.LevelWarn); len(got) != 1 || !strings.Contains(got[0], "lo") {
		t.Errorf("want one line: %q", got)
	}
}

func TestFilterOption(t *testing.T) {
	b := newBench(t)
	b.veth("v0", "v1")
	b.must(b.attacher(0, Options{}).Sync())
	// The next agent wants fewer.
	a := b.attacher(0, Options{Filter: func(d Device) bool { return d.Kind != "veth" }})
	b.must(a.Sync())
	if got := a.Attached(); len(got) != 1 || !got[0].Loopback || got[0].Name != "lo" || got[0].Kind != "" {
		t.Errorf("Attached() = %v", got)
	}
	for _, name := range []string{"v0", "v1"} {
		if got := b.programs(name); len(got) > 0 {
			t.Errorf("on %s: %q", name, got)
		}
	}
}

// An attacher without a program finds and removes what is noted.
func TestPinned(t *testing.T) {
	b := newBench(t)
	b.must(b.attacher(0, Options{ForceLegacy: true}).Sync())
	cookies, err := Pinned(b.dir)
	b.must(err)
	if !slices.Equal(cookies, []uint64{b.ns.Cookie()}) {
		t.Errorf("Pinned() = %v, want %s", cookies, cookieOf(b.ns))
	}
	a, err := New(b.ns, nil, Options{Dir: b.dir})
	b.must(err)
	if err := a.Sync(); err == nil {
		t.Error("attached nothing without an error")
	}
	b.must(a.Detach())
	if got := b.programs("lo"); len(got) > 0 {
		t.Errorf("programs: %q", got)
	}
	if cookies, err = Pinned(b.dir); len(cookies) > 0 || err != nil {
		t.Errorf("Pinned() = %v, %v", cookies, err)
	}
	if cookies, err = Pinned(b.dir + "/none"); len(cookies) > 0 || err != nil {
		t.Errorf("Pinned() = %v, %v", cookies, err)
	}
}
