// Package demo shows what headgate is for, in one minute and with nothing but
// this program: a server that slows down when too much is inside it, five
// times the load that it can carry, first with the limiter only watching, then
// with the limiter on. Server and clients are in network namespaces of their
// own; the machine's own network is not touched.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync/atomic"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/load"
	"headgate/pkg/status"
)

// The modes that a Limiter is set to.
const (
	Observe = "observe"
	Enforce = "enforce"
)

// Limiter is what the demo shows. Package agent has the real one.
type Limiter interface {
	// SetMode switches between Observe and Enforce.
	SetMode(mode string) error
	// Status returns the state with the one target of the demo.
	Status() status.Status
	// Close removes every trace of the limiter from the kernel.
	Close() error
}

// Target says what a limiter is to protect.
type Target struct {
	NetNS  string // path of the server's network namespace
	Port   uint16
	Cgroup string // path of the cgroup2 that the listening process was started in
}

// StartFunc starts a limiter in mode Observe. The server listens already, and
// nobody has connected to it.
type StartFunc func(ctx context.Context, t Target) (Limiter, error)

// Options are the demo's. Only Start must be set.
type Options struct {
	Start StartFunc

	// Server is "go" (the default), the program's own HTTP server, or "nginx",
	// an nginx in front of that.
	Server string

	// Live receives the running display; nil means none. It is redrawn in
	// place when it is a terminal, otherwise it gets one line a second.
	Live io.Writer

	// WarmUp is how long there is half the load that the server carries, so
	// that the limiter sees it unloaded. 0 means 4 s.
	WarmUp time.Duration

	// Phase is the length of each of the two overloaded phases, 0 means 18 s.
	// The first Settle of each, 0 means 4 s, and the last two seconds, in which
	// a request may not end before the phase does, are shown and not measured.
	Phase  time.Duration
	Settle time.Duration

	// Overload is the load in the phases as a multiple of what the server
	// carries. 0 means 5.
	Overload float64
}

// ErrNotRoot says what to do when the process may not make namespaces.
var ErrNotRoot = errors.New("the demo needs root: it makes network namespaces for a server and its clients, " +
	"and loads eBPF programs there; run it with sudo (it touches nothing else and leaves nothing)")

func (o *Options) setDefaults() error {
	if o.Server == "" {
		o.Server = "go"
	}
	if o.Server != "go" && o.Server != "nginx" {
		return fmt.Errorf("server %q: not go or nginx", o.Server)
	}
	for d, standard := range map[*time.Duration]time.Duration{
		&o.WarmUp: 4 * time.Second, &o.Phase: 18 * time.Second, &o.Settle: 4 * time.Second,
	} {
		if *d == 0 {
			*d = standard
		}
	}
	if o.Overload == 0 {
		o.Overload = 5
	}
	switch {
	case o.Start == nil:
		return errors.New("no limiter to show")
	case o.WarmUp < 0 || o.Settle < 0 || o.Settle+patience >= o.Phase:
		return fmt.Errorf("warm-up and settling are not negative, and a phase is more than %v longer than its settling", patience)
	case o.Overload < 1 || o.Overload > 50:
		return fmt.Errorf("overload %v: not 1 to 50", o.Overload)
	}
	return nil
}

// Run runs the demo and returns what came out. When ctx ends it cleans up and
// returns the context's error.
func Run(ctx context.Context, o Options) (result *Result, err error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	stage, err := newStage(ctx, o.Server)
	if errors.Is(err, lab.ErrNotRoot) {
		return nil, ErrNotRoot
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stage.lab.Close()) }()

	limiter, err := o.Start(ctx, stage.target)
	if err != nil {
		return nil, fmt.Errorf("starting the limiter: %w", err)
	}
	defer func() { err = errors.Join(err, limiter.Close()) }()

	return play(ctx, o, stage, limiter)
}

// play runs the load and watches.
func play(ctx context.Context, o Options, stage *stage, limiter Limiter) (*Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	flip := o.WarmUp + o.Phase // from observe to enforce
	end := flip + o.Phase
	var (
		recorder load.Recorder
		offered  atomic.Uint64
		begin    = time.Now()
		ended    = make(chan error, 1)
	)
	go func() {
		ended <- stage.clients.Do(func() error {
			return load.Run(ctx, load.Config{
				Target: netip.AddrPortFrom(stage.server.Addr4, stage.target.Port),
				Arrivals: counted(&offered, load.Poisson(uint64(begin.UnixNano()),
					load.Step{Rate: capacity / 2, For: o.WarmUp},
					load.Step{Rate: capacity * o.Overload, For: 2 * o.Phase})),
				Sources: stage.sources,
				Request: load.Get("/"),
				Timeout: patience,
				// All that can be open when nobody is answered, and a reserve.
				MaxOutstanding: int(1.25 * o.Overload * capacity * patience.Seconds()),
			}, recorder.Record)
		})
	}()

	w := &watcher{limiter: limiter, recorder: &recorder, offered: &offered, flip: flip, warmUp: o.WarmUp}
	view := newView(o.Live, end)
	defer view.close()
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	flipped := false
	for {
		select {
		case err := <-ended:
			if ctx.Err() != nil {
				return nil, fmt.Errorf("the demo was stopped: %w", context.Cause(ctx))
			}
			if err != nil {
				return nil, fmt.Errorf("load: %w", err)
			}
			return newResult(o, &recorder, w.samples), nil
		case <-tick.C:
		}
		now := time.Since(begin)
		if now >= flip && !flipped {
			if err := limiter.SetMode(Enforce); err != nil {
				cancel()
				return nil, errors.Join(fmt.Errorf("switching the limiter on: %w", err), ignoreEnd(<-ended))
			}
			flipped = true
		}
		if now < end {
			view.show(w.sample(now))
		}
	}
}

// counted counts the arrivals that a load has begun.
func counted(n *atomic.Uint64, next load.Arrivals) load.Arrivals {
	begun := false
	return func() (time.Duration, bool) {
		if begun {
			n.Add(1) // the one that was asked for before
		}
		begun = true
		return next()
	}
}

// ignoreEnd drops the error of a load that was told to end.
func ignoreEnd(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
