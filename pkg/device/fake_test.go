package device

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"
)

// fake is a kernel in which everything can be made to happen at a given time.
type fake struct {
	mu       sync.Mutex
	there    map[int]Device
	on       map[int]bool    // has our program
	errs     map[int][]error // of the next calls for a device
	listErrs []error
	notes    map[int]bool // kept for a device
	tried    map[int][]time.Time
	lists    int
	watching int
	changes  chan change
	start    time.Time
	settled  bool
	slow     time.Duration // that an attach takes
}

func newFake(devices ...Device) *fake {
	f := &fake{
		there: map[int]Device{}, on: map[int]bool{}, errs: map[int][]error{},
		notes: map[int]bool{}, tried: map[int][]time.Time{}, start: time.Now(),
	}
	for _, d := range devices {
		f.there[d.Index] = d
	}
	return f
}

func (f *fake) enter(g func() error) error { return g() }

func (f *fake) devices() ([]Device, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	if len(f.listErrs) > 0 {
		err := f.listErrs[0]
		f.listErrs = f.listErrs[1:]
		return nil, err
	}
	return slices.Collect(maps.Values(f.there)), nil
}

func (f *fake) fails(index int) error {
	f.tried[index] = append(f.tried[index], time.Now())
	if len(f.errs[index]) == 0 {
		return nil
	}
	err := f.errs[index][0]
	f.errs[index] = f.errs[index][1:]
	return err
}

func (f *fake) attach(d Device) (Method, bool, error) {
	time.Sleep(f.slow)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fails(d.Index); err != nil {
		return TCX, false, err
	}
	made := !f.on[d.Index]
	f.on[d.Index], f.notes[d.Index] = true, true
	return TCX, made, nil
}

func (f *fake) detach(d Device) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fails(d.Index); err != nil {
		return err
	}
	delete(f.on, d.Index)
	delete(f.notes, d.Index)
	return nil
}

func (f *fake) forget(index int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.on, index)
	delete(f.notes, index)
	return nil
}

func (f *fake) kept() ([]int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.notes)), nil
}

func (f *fake) settle() error { f.settled = true; return nil }
func (f *fake) clear() error  { clear(f.notes); return nil }

func (f *fake) before(Attachment) ([]Program, error) { return nil, errors.New("not here") }

func (f *fake) watch(context.Context) (<-chan change, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watching++
	f.changes = make(chan change, 1000)
	return f.changes, nil
}

// add makes a device; told: and the kernel says so.
func (f *fake) add(d Device, told bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.there[d.Index] = d
	if told {
		f.changes <- change{index: d.Index, name: d.Name}
	}
}

func (f *fake) remove(index int, told bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := f.there[index].Name
	delete(f.there, index)
	delete(f.on, index)
	if told {
		f.changes <- change{index: index, name: name, gone: true}
	}
}

// lose makes the kernel drop what it had to tell.
func (f *fake) lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.changes)
}

// has says whether each of the devices has our program, and no other one.
func (f *fake) has(t *testing.T, when string, indexes ...int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	on := slices.Sorted(maps.Keys(f.on))
	if !slices.Equal(on, indexes) {
		t.Errorf("%s: attached to %v, want %v", when, on, indexes)
	}
}

// tries returns when a device was tried, since the start.
func (f *fake) tries(index int) (all []time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.tried[index] {
		all = append(all, t.Sub(f.start))
	}
	return all
}

// lines is a log of which the tests look at what is worth a line.
type lines struct {
	mu  sync.Mutex
	all []slog.Record
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *lines) WithGroup(string) slog.Handler            { return l }
func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, r)
	return nil
}

// atLeast returns the messages of a level and above, with what they are about.
func (l *lines) atLeast(level slog.Level) (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.all {
		if r.Level >= level {
			line := r.Message
			r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
			all = append(all, line)
		}
	}
	return all
}
