package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

var (
	lo   = Device{Index: 1, Name: "lo", Loopback: true}
	eth0 = Device{Index: 2, Name: "eth0"}
	veth = Device{Index: 3, Name: "veth3", Kind: "veth"}
)

// follow runs an attacher on a fake kernel, in a bubble, for as long as f.
func follow(t *testing.T, f func(*fake, *Attacher, *lines), filter func(Device) bool, devices ...Device) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k, log := newFake(devices...), &lines{}
		a := newAttacher(k, Options{Log: slog.New(log), Filter: filter})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- a.Run(ctx) }()
		synctest.Wait()
		f(k, a, log)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestDevicesThatComeAndGo(t *testing.T) {
	follow(t, func(k *fake, a *Attacher, log *lines) {
		k.has(t, "at once", 1, 2)
		k.add(veth, true)
		time.Sleep(200 * time.Millisecond)
		k.has(t, "200 ms later", 1, 2, 3)
		k.remove(2, true)
		time.Sleep(200 * time.Millisecond)
		k.has(t, "after its end", 1, 3)
		if got := a.Attached(); len(got) != 2 || got[0].Device != lo || got[1].Device != veth {
			t.Errorf("Attached() = %v", got)
		}
		if k.notes[2] {
			t.Error("something is kept for a device that is gone")
		}
		if bad := log.atLeast(slog.LevelInfo); len(bad) > 0 {
			t.Errorf("worth a line: %q", bad)
		}
	}, nil, lo, eth0)
}

func TestNothingKeptFromBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake(lo)
		k.notes[7] = true // of a device that went while nobody was looking
		a := newAttacher(k, Options{})
		if err := a.Sync(); err != nil {
			t.Fatal(err)
		}
		if k.notes[7] || !k.notes[1] {
			t.Errorf("kept: %v", k.notes)
		}
		if !k.settled {
			t.Error("earlier programs are still kept")
		}
	})
}

// What the kernel does not tell is found by looking: after a loss at once,
// otherwise within the resync interval.
func TestUntold(t *testing.T) {
	follow(t, func(k *fake, _ *Attacher, log *lines) {
		time.Sleep(time.Second)
		k.add(eth0, false)
		k.lose()
		time.Sleep(200 * time.Millisecond)
		k.has(t, "after a loss", 1, 2)
		if k.watching != 2 {
			t.Errorf("subscribed %d times", k.watching)
		}
		k.add(veth, false)
		k.remove(2, false)
		time.Sleep(resync + time.Second)
		k.has(t, "after a resync", 1, 3)
		if bad := log.atLeast(slog.LevelInfo); len(bad) > 0 {
			t.Errorf("worth a line: %q", bad)
		}
	}, nil, lo)
}

func TestBurstCostsFewPasses(t *testing.T) {
	follow(t, func(k *fake, _ *Attacher, _ *lines) {
		before := k.lists
		for i := range 500 {
			k.add(Device{Index: 10 + i, Name: fmt.Sprint("v", i)}, true)
			k.remove(10+i, true)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		k.has(t, "after the burst", 1)
		if passes := k.lists - before; passes < 2 || passes > 500/20+5 {
			t.Errorf("%d passes for a burst of 500 ms", passes)
		}
	}, nil, lo)
}

// A new device does not wait because many came before it.
func TestAfterLongPass(t *testing.T) {
	follow(t, func(k *fake, a *Attacher, _ *lines) {
		k.slow = 13 * time.Millisecond // as measured, with TCX
		for i := range 100 {
			k.add(Device{Index: 10 + i, Name: fmt.Sprint("v", i)}, true)
		}
		time.Sleep(2 * time.Second)
		if n := len(a.Attached()); n != 101 {
			t.Errorf("attached to %d devices", n)
		}
		for i := range 100 {
			k.add(Device{Index: 210 + i, Name: fmt.Sprint("w", i)}, true)
		}
		time.Sleep(1400 * time.Millisecond) // just over
		k.add(veth, true)
		time.Sleep(200 * time.Millisecond)
		if !has(a, veth.Name) {
			t.Error("not attached after 200 ms")
		}
	}, nil, lo)
}

// News about a device that is known and has its name is none.
func TestNoNews(t *testing.T) {
	follow(t, func(k *fake, _ *Attacher, _ *lines) {
		before := k.lists
		for range 100 {
			k.changes <- change{index: 1, name: "lo"}
			k.changes <- change{index: 77, name: "never seen", gone: true}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		if k.lists != before {
			t.Errorf("%d passes for nothing", k.lists-before)
		}
	}, nil, lo)
}

func TestRenamed(t *testing.T) {
	onlyEth := func(d Device) bool { return strings.HasPrefix(d.Name, "eth") }
	follow(t, func(k *fake, a *Attacher, _ *lines) {
		k.has(t, "before", 2)
		k.add(Device{Index: 2, Name: "wan"}, true)
		k.add(Device{Index: 1, Name: "eth9"}, true)
		time.Sleep(200 * time.Millisecond)
		k.has(t, "after", 1)
		if got := a.Attached(); len(got) != 1 || got[0].Name != "eth9" {
			t.Errorf("Attached() = %v", got)
		}
	}, onlyEth, lo, eth0)
}

// A device that moved out and back in has the same index and name, but its
// qdiscs are gone. That is nobody's fault.
func TestMovedOutAndIn(t *testing.T) {
	follow(t, func(k *fake, _ *Attacher, log *lines) {
		k.remove(2, true)
		k.add(eth0, true)
		time.Sleep(200 * time.Millisecond)
		k.has(t, "after", 1, 2)
		if bad := log.atLeast(slog.LevelInfo); len(bad) > 0 {
			t.Errorf("worth a line: %q", bad)
		}
	}, nil, lo, eth0)
}

func TestRemovedBySomebody(t *testing.T) {
	follow(t, func(k *fake, _ *Attacher, log *lines) {
		k.mu.Lock()
		delete(k.on, 1)
		k.mu.Unlock()
		time.Sleep(resync + time.Second)
		k.has(t, "after a resync", 1)
		if bad := log.atLeast(slog.LevelWarn); len(bad) != 1 {
			t.Errorf("want one line about it: %q", bad)
		}
	}, nil, lo)
}

func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, log := newFake(lo, eth0), &lines{}
		k.errs[2] = slices.Repeat([]error{unix.EBUSY}, 4)
		a := newAttacher(k, Options{Log: slog.New(log)})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		time.AfterFunc(time.Millisecond, func() {
			if f := a.Failed(); len(f) != 1 || f[0].Device != eth0 || !errors.Is(f[0].Err, unix.EBUSY) {
				t.Errorf("Failed() = %v", f)
			}
		})
		if err := a.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
		ms := time.Millisecond
		want := []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms}
		if got := k.tries(2); !slices.Equal(got, want) {
			t.Errorf("tried at %v, want %v", got, want)
		}
		if got := k.tries(1); len(got) != 1 {
			t.Errorf("a device in order was looked at at %v", got)
		}
		k.has(t, "at last", 1, 2)
		if f := a.Failed(); len(f) > 0 {
			t.Errorf("Failed() = %v", f)
		}
		if got := log.atLeast(slog.LevelWarn); len(got) != 1 {
			t.Errorf("want one line about it: %q", got)
		}
	})
}

func TestClasses(t *testing.T) {
	wrapped := func(err error) error { return fmt.Errorf("attach: %w", err) }
	for err, want := range map[error]class{
		nil:                      none,
		wrapped(unix.ENODEV):     gone,
		wrapped(unix.EOPNOTSUPP): unable,
		wrapped(unix.EPERM):      fatal,
		wrapped(ErrNoHook):       fatal,
		wrapped(unix.EBUSY):      retry,
		errors.New("whatever"):   retry,
		fmt.Errorf("%w: %w", errSharedBlock, unix.EOPNOTSUPP): retry,
		errors.Join(nil, wrapped(unix.ENODEV)):                gone,
	} {
		if got := classify(err); got != want {
			t.Errorf("classify(%v) = %d, want %d", err, got, want)
		}
	}
}

// A device that goes between the list and the attempt, and one that cannot
// have a program, are no errors.
func TestGoneOrUnable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, log := newFake(lo, eth0, veth), &lines{}
		k.errs[2] = []error{unix.ENODEV}
		k.errs[3] = slices.Repeat([]error{unix.EOPNOTSUPP}, 3)
		a := newAttacher(k, Options{Log: slog.New(log)})
		if err := a.Sync(); err != nil {
			t.Errorf("Sync: %v", err)
		}
		_ = a.Sync()
		if f := a.Failed(); len(f) != 1 || f[0].Device != veth {
			t.Errorf("Failed() = %v", f)
		}
		if bad := log.atLeast(slog.LevelInfo); len(bad) > 0 {
			t.Errorf("worth a line: %q", bad)
		}
		k.has(t, "the others", 1, 2)
	})
}

func TestFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake(lo)
		k.errs[1] = []error{unix.EPERM, unix.EPERM}
		a := newAttacher(k, Options{})
		if err := a.Sync(); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "lo") {
			t.Errorf("Sync: %v", err)
		}
		if err := a.Run(t.Context()); !errors.Is(err, unix.EPERM) {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestListFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, log := newFake(lo), &lines{}
		k.listErrs = []error{unix.ENOMEM, unix.ENOMEM, unix.ENOMEM}
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		if err := newAttacher(k, Options{Log: slog.New(log)}).Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
		k.has(t, "in the end", 1)
		if got := log.atLeast(slog.LevelWarn); len(got) != 1 {
			t.Errorf("want one line about it: %q", got)
		}
	})
}

func TestDetach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake(lo, eth0)
		a := newAttacher(k, Options{})
		if err := a.Sync(); err != nil {
			t.Fatal(err)
		}
		k.errs[1] = []error{unix.EBUSY}
		k.errs[2] = []error{unix.ENODEV}
		k.notes[9] = true
		if err := a.Detach(); !errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENODEV) {
			t.Errorf("Detach: %v", err)
		}
		if !k.notes[9] {
			t.Error("what was noted is dropped although it is needed again")
		}
		if err := a.Detach(); err != nil {
			t.Errorf("Detach: %v", err)
		}
		k.has(t, "after")
		if len(k.notes) > 0 || len(a.Attached()) > 0 {
			t.Errorf("kept %v, attached %v", k.notes, a.Attached())
		}
	})
}

// Whatever comes, goes, is renamed, fails or is not told: a while later
// exactly the devices that should have the program have it.
func TestAnything(t *testing.T) {
	even := func(d Device) bool { return !strings.HasPrefix(d.Name, "x") }
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) [3]int {
			return [3]int{rapid.IntRange(0, 6).Draw(t, "what"), rapid.IntRange(1, 6).Draw(t, "index"), rapid.IntRange(0, 50).Draw(t, "ms")}
		}), 1, 60).Draw(rt, "steps")
		follow(t, func(k *fake, _ *Attacher, _ *lines) {
			for _, s := range steps {
				what, index := s[0], s[1]
				switch what {
				case 0, 1:
					k.add(Device{Index: index, Name: fmt.Sprint("e", index)}, what == 0)
				case 2:
					k.add(Device{Index: index, Name: fmt.Sprint("x", index)}, true)
				case 3, 4:
					k.remove(index, what == 3)
				case 5:
					k.mu.Lock()
					k.errs[index] = []error{unix.EBUSY, unix.EAGAIN, unix.ENODEV}[:s[2]%4]
					k.mu.Unlock()
				case 6:
					k.lose()
					time.Sleep(2 * firstRetry) // until it is watched again
				}
				time.Sleep(time.Duration(s[2]) * time.Millisecond)
			}
			time.Sleep(3 * resync)
			var want []int
			for i := 1; i <= 6; i++ {
				if d, ok := k.there[i]; ok && even(d) {
					want = append(want, i)
				}
			}
			k.has(t, fmt.Sprint(steps), want...)
		}, even)
		if t.Failed() {
			rt.FailNow()
		}
	})
}
