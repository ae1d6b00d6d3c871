// Package agent puts headgate together: the kernel's gate, one algorithm for
// each target, and what is reported of them.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"headgate/pkg/config"
	"headgate/pkg/discovery"
	"headgate/pkg/events"
	"headgate/pkg/kubernetes"
	"headgate/pkg/loader"
	"headgate/pkg/rtt"
	"headgate/pkg/scope"
)

// meterInterval is how often what only people read is read from the kernel.
const meterInterval = time.Second

// Agent protects the targets of a configuration.
type Agent struct {
	log     *slog.Logger
	version string
	gate    *loader.Gate
	cgroup2 string

	// ended and removed say what was called: Stop or Remove, and Remove. These
	// are not safe for concurrent use. ended is guarded by applying.
	ended, removed bool

	// events is what happens, for people; refusals and held are where those
	// come from who are refused.
	events   *events.Bus
	refusals *loader.Refusals
	held     heldRefusals

	// stop ends what goes on by itself, and nil says that nothing does yet.
	stop context.CancelFunc
	goes sync.WaitGroup

	// wakes is what the programs tell; awake is closed when nobody listens to it
	// any more; wakers is who is told, by target. trims: connections can be ended.
	wakes  *loader.Wakes
	awake  chan struct{}
	wakers atomic.Pointer[map[uint32]waker]
	trims  bool

	// applying is held while one plan follows another, and while something goes
	// on that must not happen to; before mu.
	applying sync.Mutex

	// finder looks for what comes and goes; nil until a rule names such. Guarded
	// by applying, as are those that could not be protected.
	finder *discovery.Finder
	api    func() (*kubernetes.API, error)
	failed []failed

	mu       sync.Mutex // guards what follows, the scopes, the targets and the gate
	cfg      *config.Config
	plan     plan
	missing  []missing
	scopes   []*scopeState
	targets  []*target
	building []*target // of a plan that is not in force yet; the kernel may have them
	ids      []uint32
	orders   []loader.Order
	renewed  time.Duration // when the lease was
	failure  error         // of the last window
	reloads  reloads
	recounts recounts
	checks   selfChecks
	owners   map[uint64]*owner
	scratch  scratch
	found    discovery.Result // without what is protected
}

// scopeState is one network namespace with targets in it.
type scopeState struct {
	netns   *scope.Netns
	names   []string // what rules call it
	found   string   // what was found to be in it, where rules do not name it
	targets map[uint16]*target
	holding *holding // nil where nothing waits
	trimmer *trimmer // nil where the kernel cannot end connections

	// reviews are when to look through all connections for what nobody else
	// ends, see [loader.Gate.Settle].
	reviews []time.Duration

	// changed: since the last recount another unit is counted, or other things are
	// made of sources. Not every connection that is there may know that yet.
	changed bool
}

// Start attaches everything that the configuration needs and begins to
// enforce it. When it returns an error nothing that was not there before is
// left attached.
func Start(cfg *config.Config, version string, log *slog.Logger) (_ *Agent, err error) {
	a := &Agent{
		cfg:     cfg,
		log:     log,
		version: version,
		owners:  make(map[uint64]*owner),
		events:  events.NewBus(events.Kept, time.Now),
		api:     sync.OnceValues(func() (*kubernetes.API, error) { return kubernetes.FromEnvironment(os.LookupEnv) }),
	}
	defer func() {
		if err != nil {
			a.release(err)
		}
	}()

	if a.cgroup2, err = scope.Cgroup2(); err != nil {
		return nil, err
	}
	if err := discovery.Needs(cfg.Rules, a.api); err != nil {
		return nil, err
	}
	a.gate, err = loader.Open(loader.Options{Dir: cfg.State, Targets: roomFor(cfg), Log: log})
	if err != nil {
		return nil, err
	}
	if a.refusals, err = a.gate.NewRefusals(); err != nil {
		return nil, err
	}
	if err := a.begin(cfg); err != nil {
		return nil, err
	}
	// No listener goes unnoticed that appears from here on.
	if err := a.locked(func() error { return a.watchAllListeners(a.renewed) }); err != nil {
		return nil, err
	}
	a.reloads.good = time.Now()
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	a.goes.Go(func() { a.loop(ctx) })
	a.goes.Go(func() { a.follow(ctx) })
	return a, nil
}

// running says whether the agent has started.
func (a *Agent) running() bool { return a.stop != nil }

// String is how status and messages name the scope.
func (s *scopeState) String() string {
	if len(s.names) == 0 {
		return s.found
	}
	return config.Scope{Netns: s.names[0]}.String()
}

// loop runs a window after the other until ctx ends.
func (a *Agent) loop(ctx context.Context) {
	every := a.cfg.Window
	window := time.NewTicker(every)
	defer window.Stop()
	meters := time.NewTicker(meterInterval)
	defer meters.Stop()
	// With 100,000 connections a look through all takes 100 ms: windows go on.
	settled, settling := make(chan error, 1), false
	for {
		var err error
		select {
		case <-ctx.Done():
			if settling {
				a.note(<-settled)
			}
			return
		case <-window.C:
			err = a.runWindow()
		case <-meters.C:
			err = a.readMeters()
			if settling {
				break
			}
			doubts := a.doubtful()
			recount, ask := a.recountDue()
			if doubts || recount {
				settling = true
				go func() { settled <- a.lookThrough(recount, ask) }()
			}
		case err = <-settled:
			settling = false
		}
		a.note(err)
		if now := a.window(); now != every {
			every = now
			window.Reset(every)
		}
	}
}

func (a *Agent) window() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cfg.Window
}

// followInterval is how often is looked whether the namespaces are the same.
const followInterval = time.Second

// follow keeps the plan in force where what it names changes, until ctx ends: a
// namespace that is deleted and made anew under its name is another one, and what
// has to be looked for comes and goes.
func (a *Agent) follow(ctx context.Context) {
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	var trouble error
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		a.applying.Lock()
		err := a.followUp()
		a.applying.Unlock()
		if err != nil && (trouble == nil || trouble.Error() != err.Error()) {
			a.log.Error("cannot follow the network namespaces", "error", err)
		}
		trouble = err
	}
}

// note logs trouble when it begins and when it is over, not every window.
func (a *Agent) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil && (a.failure == nil || a.failure.Error() != err.Error()):
		a.log.Error("window failed; the limits in force stay until the lease ends", "error", err)
		a.trouble(false, "window", fmt.Sprintf("window failed; the limits in force stay until the lease ends: %v", err))
	case err == nil && a.failure != nil:
		a.log.Info("windows run again")
		a.trouble(true, "window", "windows run again")
	}
	a.failure = err
}

// runWindow reads the counts, asks the algorithms and writes their decisions.
func (a *Agent) runWindow() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.gate.Sweep(); err != nil {
		return err
	}
	now, err := monotonic()
	if err != nil {
		return err
	}
	lookAgain := false
	for i, t := range a.targets {
		r, err := a.gate.Reading(t.id)
		if err != nil {
			return err
		}
		lookAgain = lookAgain || r.Listens != t.last.Listens
		var window *rtt.Histogram
		if t.quantiles && r.Samples[t.signal] != t.last.Samples[t.signal] {
			if err := a.gate.Histogram(t.id, t.signal, &a.scratch.total); err != nil {
				return err
			}
			window = &a.scratch.window
			t.perTick.Next(&a.scratch.total, window)
		}
		if err := t.readClasses(a.gate); err != nil {
			return err
		}
		a.orders[i] = t.step(now, &r, window, a.log)
	}
	if err := a.gate.Write(a.ids, a.orders, now+a.cfg.Lease); err != nil {
		return err
	}
	a.renewed = now
	if err := a.tell(now); err != nil {
		return err
	}
	if lookAgain {
		return a.watchAllListeners(now)
	}
	return nil
}

// readMeters reads what only people look at: histograms and accept queues.
func (a *Agent) readMeters() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.targets {
		for _, m := range t.meters() {
			if err := m.read(a.gate, t, &a.scratch); err != nil {
				return err
			}
		}
		if t.holder != nil {
			waits := t.holder.TargetStats(t.id).Waits
			t.waits.read(&waits, &a.scratch.window)
		}
		t.meterRefusals()
	}
	for _, s := range a.scopes {
		if s.holding != nil {
			handover := s.holding.holder.Stats().HandOver
			s.holding.handover.read(&handover, &a.scratch.window)
		}
	}
	for _, s := range a.scopes {
		if s.holding != nil {
			a.look(s)
		}
	}
	now, err := monotonic()
	if err != nil {
		return err
	}
	return errors.Join(a.selfCheck(now), a.watchAllListeners(now), a.retire())
}

// giveUpTime is how long after its time is over a request is given up that
// waits in vain, see GIVE_UP_TIME in bpf/adopt.h; and as much for good measure.
const giveUpTime = 2 * time.Second

// reviewAfterStart plans to look for what a predecessor left: responses that
// were announced to it, and requests whose packets it held.
func (s *scopeState) reviewAfterStart(now time.Duration) {
	var idle, wait time.Duration
	for _, t := range s.targets {
		if r := t.config.Rule; r.Unit == config.UnitRequest {
			idle = max(idle, r.End.Idle)
			wait = max(wait, r.Hold.MaxWait+giveUpTime)
		}
	}
	if idle > 0 {
		s.reviews = append(s.reviews, now+idle)
	}
	if wait > 0 {
		s.reviews = append(s.reviews, now+wait)
	}
}

// due says whether one of the reviews that are planned is.
func (s *scopeState) due(now time.Duration) bool {
	planned := len(s.reviews)
	s.reviews = slices.DeleteFunc(s.reviews, func(at time.Duration) bool { return at <= now })
	return len(s.reviews) < planned
}

// doubtful says whether there are requests that nobody else ends: whose response
// looked like something else, or was not told of. The former shows a second later,
// so those are settled that were seen the time before; the latter once it is idle.
func (a *Agent) doubtful() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, err := monotonic()
	if err != nil {
		return false // as the next window will say
	}
	doubts := false
	for _, s := range a.scopes {
		doubts = s.due(now) || doubts
		for _, t := range s.targets {
			doubts = doubts || t.doubts
			t.settled = t.settled || t.doubts
			t.doubts = t.last.Doubtful != t.doubtful
			t.doubtful = t.last.Doubtful
			if t.last.Untold != t.untold {
				t.untold = t.last.Untold
				s.reviews = append(s.reviews, now+t.config.Rule.End.Idle)
			}
		}
	}
	return doubts
}

// lookThrough looks through all connections: to end requests that are over, and
// to recount when it is time for that, see [Agent.recountAll].
func (a *Agent) lookThrough(recount, ask bool) error {
	if recount {
		return a.recountAll(ask) // that settles too
	}
	a.applying.Lock() // no namespace is closed meanwhile
	defer a.applying.Unlock()
	var all []*scope.Netns
	for _, s := range a.scopes {
		all = append(all, s.netns)
	}
	return a.gate.Settle(all...)
}

// setEnded waits for a plan that is being applied, and lets no other one begin.
func (a *Agent) setEnded() {
	a.applying.Lock()
	defer a.applying.Unlock()
	a.ended = true
}

// end stops the window loop and, scope by scope, what lets arrivals wait.
func (a *Agent) end(holding func(*holding) error) error {
	if a.stop != nil {
		a.stop()
		a.goes.Wait()
	}
	var errs []error
	if a.refusals != nil {
		errs = append(errs, a.refusals.Close())
	}
	a.events.Close()
	if a.wakes != nil {
		errs = append(errs, a.wakes.Close())
		<-a.awake
	}
	for _, s := range a.scopes {
		errs = append(errs, s.trimmer.close())
		if s.holding != nil {
			errs = append(errs, holding(s.holding))
		}
	}
	return errors.Join(errs...)
}

// Stop ends the agent and leaves the kernel's side in place for the next one:
// counting goes on, and every gate opens when the lease runs out. After Stop or
// Remove it does nothing.
func (a *Agent) Stop() error {
	if a.ended {
		return nil
	}
	a.setEnded()
	err := a.end((*holding).close)
	return errors.Join(err, a.gate.Close(), a.closeScopes())
}

// Remove ends the agent and detaches everything, after Stop too, unless another
// agent is running: then it is an error that wraps [loader.ErrInUse]. After
// Remove it does nothing.
func (a *Agent) Remove() error {
	if a.removed {
		return nil
	}
	a.removed = true
	if a.ended {
		_, err := CleanUp(a.cfg.State, a.log)
		return err
	}
	a.setEnded()
	err := a.end(func(h *holding) error {
		// Or who comes in between is refused, where before there was a place to wait.
		a.gate.Open()
		return h.remove()
	})
	return errors.Join(err, a.gate.Remove(), a.closeScopes())
}

// release undoes a start that failed. What a predecessor had left stays.
func (a *Agent) release(cause error) {
	if err := a.end((*holding).undo); err != nil {
		a.log.Error("cannot undo a failed start", "error", err, "start", cause)
	}
	if a.gate != nil {
		if err := a.gate.Abandon(); err != nil {
			a.log.Error("cannot undo a failed start", "error", err, "start", cause)
		}
	}
	if err := a.closeScopes(); err != nil {
		a.log.Error("cannot undo a failed start", "error", err, "start", cause)
	}
}

func (a *Agent) closeScopes() error {
	var errs []error
	for _, s := range a.scopes {
		errs = append(errs, s.netns.Close())
	}
	if a.finder != nil {
		errs = append(errs, a.finder.Close())
		a.finder = nil
	}
	return errors.Join(errs...)
}

// monotonic is the kernel's clock for programs, which Go's does not show.
func monotonic() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("clock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}
