package agent

import (
	"log/slog"
	"maps"
	"math"
	"reflect"
	"time"

	"headgate/pkg/config"
	"headgate/pkg/controller"
	"headgate/pkg/loader"
	"headgate/pkg/pace"
	"headgate/pkg/rtt"
	"headgate/pkg/source"
	"headgate/pkg/status"
)

// rttQuantile is what stands for a window of TCP round trips: low, because a
// client's delayed ACK and its own thinking are in the higher ones.
const rttQuantile = 0.1

// target is one protected port: what the kernel counted last, the algorithm
// that makes a limit of it, and what is reported.
type target struct {
	id     uint32
	key    loader.TargetKey
	config config.Target
	algo   controller.Algorithm
	signal loader.Signal
	mode   config.Mode // in force

	overridden override

	last      loader.Reading
	flood     bool          // the target was in flood mode at the last step
	trimmed   uint64        // connections, when that began
	idle      int           // connections that are only kept open, at the last step
	typical   time.Duration // service time, smoothed
	doubtful  uint64        // requests, when they were last settled
	untold    uint64        // responses, the same
	doubts    bool          // there were some since
	settled   bool          // they were once
	recounted recounted
	decision  controller.Decision
	tick      uint32 // of the order in force
	epoch     uint32 // what is added to the algorithm's cohort epochs, see adopt

	// adaptive: the limit follows the service time, and so is one of work.
	// timed: the packets of its connections are seen. floor: the least that the
	// algorithm sets, 0 for none. most: the configured max.
	adaptive bool
	timed    bool
	floor    int
	most     int

	// ingress: arrivals are decided on the devices. holder: where they wait, nil
	// where none can.
	ingress  bool
	known    bool // to the kernel, from a predecessor
	holder   *pace.Holder
	held     pace.QueueCounts // at the last step
	waits    tally            // of those that were held and let in
	vain     pace.QueueCounts // of holders that are gone
	pacing   *pacing
	interval time.Duration // from one admission to the next; 0: no pace

	// sources is what the rule makes of clients' addresses, classes what the
	// kernel has counted of the rule's classes.
	sources *source.Table
	classes []loader.ClassReading

	// quantiles: the algorithm wants the sizes of the samples, not just the sum.
	quantiles bool
	perTick   rtt.Reader

	service, trips, handshake meter
	whole                     meter // of connections, see [loader.Lifetime]
	listener                  listenerState
	untimed                   untimed
	change                    change
	told                      told
	windows                   windows
}

// listenerState is that of all listeners of a port together.
type listenerState struct {
	present   bool
	timed     bool   // their packets are seen
	queued    int    // connections that nobody has accepted yet
	backlog   int    // most of them
	strangers int    // see [scope.SYNQueue.Strangers]
	dropped   uint64 // packets, as the kernel counts
	overflows uint64 // connections that found a full queue, since the agent began

	// overflowed counts those of all ports of the scope.
	overflowed uint64
}

// windows are how many there were, by what came of them.
type windows struct{ empty, changed, unchanged uint64 }

// byOutcome is that by name, without what never came of one.
func (w windows) byOutcome() map[string]uint64 {
	all := map[string]uint64{"empty": w.empty, "changed": w.changed, "unchanged": w.unchanged}
	maps.DeleteFunc(all, func(_ string, n uint64) bool { return n == 0 })
	return all
}

type change struct {
	reason string
	at     time.Duration
}

func newTarget(t config.Target, key loader.TargetKey) (*target, error) {
	algo, err := t.NewAlgorithm()
	if err != nil {
		return nil, err
	}
	p := t.Rule.Limit.Params
	signal := signalOf(t.Rule.Signal)
	most := math.MaxInt32
	if p.Max != nil {
		most = *p.Max
	}
	pacing, err := newPacing(t.Rule)
	if err != nil {
		return nil, err
	}
	return &target{
		ingress:   t.Rule.NeedsIngress(),
		pacing:    pacing,
		adaptive:  signal == loader.Service && t.Rule.Limit.Algorithm != "fixed",
		floor:     controller.Floor(t.Rule.Limit.Algorithm, p),
		most:      most,
		key:       key,
		config:    t,
		algo:      algo,
		signal:    signal,
		mode:      t.Rule.Mode,
		quantiles: signal == loader.RTT || p.SampleWindow != nil && *p.SampleWindow == controller.Percentile,
		service:   meter{signal: loader.Service},
		trips:     meter{signal: loader.RTT},
		handshake: meter{signal: loader.Handshake},
		whole:     meter{signal: loader.Lifetime},
		sources:   source.NewTable(t.Rule.SourcePolicy()),
	}, nil
}

func signalOf(s config.Signal) loader.Signal {
	switch s {
	case config.SignalRTT:
		return loader.RTT
	case config.SignalConnection, config.SignalAccept:
		return loader.Lifetime
	default:
		return loader.Service
	}
}

// begin is the order that a target starts with: the algorithm's first
// decision, before it has seen anything.
func (t *target) begin(now time.Duration) loader.Order {
	t.decision = t.algo.Decide(controller.Tick{Now: now})
	t.told.limit, t.told.limitAt, t.told.before = t.decision.Limit, now, t.decision.Limit
	t.interval = t.pacing.interval(now, t.last.Admitted, t.decision.Limit, 0)
	t.tick++
	return t.order()
}

// adopt takes what a predecessor has counted as the start. Ticks and cohorts
// go on from its numbers: an equal one would be mistaken for the old.
func (t *target) adopt(r loader.Reading) {
	t.last = r
	t.told.refusals, t.told.second = refusedOf(r), refusedOf(r)
	t.tick = max(t.tick, r.PeakTick, r.RefusedIn) + 1
	t.epoch = r.CohortEpoch
}

// retune has the target go on under another rule. r is what the kernel has
// counted.
func (t *target) retune(g *loader.Gate, c retuning, r loader.Reading, now time.Duration, s *scratch) error {
	n := c.new
	if reflect.DeepEqual(t.config.Rule.Pace, n.config.Rule.Pace) {
		t.pacing.rule = n.config.Rule // the rest of a warm-up, and what it has learned
	} else {
		t.pacing = n.pacing
	}
	t.config = n.config
	if c.sources {
		t.sources = n.sources
	}
	t.setMode()
	if err := t.readClasses(g); err != nil {
		return err
	}
	t.ingress, t.most, t.adaptive, t.quantiles = n.ingress, n.most, n.adaptive, n.quantiles
	t.idle = t.idleIn(&r)
	if !c.limit {
		return nil
	}
	limit, told := t.decision.Limit, t.told
	defer func() {
		t.told = told // so that the change is told of
		if t.decision.Limit != limit && t.overridden.limit == nil {
			t.change = change{reason: "the rule has changed", at: now}
		}
	}()
	if same := c.was.Signal == n.config.Rule.Signal && !c.unit; same && controller.Resume(n.algo, t.algo) {
		t.algo = n.algo
		t.decision = t.algo.Decide(controller.Tick{Now: now})
		return nil
	}
	t.algo, t.signal = n.algo, n.signal
	t.epoch = max(r.CohortEpoch, t.decision.CohortEpoch+t.epoch)
	t.last = r
	t.begin(now)
	t.whole = n.whole
	return t.followed().begin(g, t, s)
}

// dropHolder notes that nothing waits for the target any more.
func (t *target) dropHolder() {
	gone := t.holder.TargetStats(t.id).QueueCounts
	t.vain.TimedOut += gone.TimedOut
	t.vain.Overflowed += gone.Overflowed
	t.waits.reader = rtt.Reader{} // another holder begins at 0
	t.holder, t.held = nil, pace.QueueCounts{}
}

// step makes an order from what the kernel has counted since the last step.
// window holds the samples, nil where the algorithm does not want them or there
// are none.
func (t *target) step(now time.Duration, r *loader.Reading, window *rtt.Histogram, log *slog.Logger) loader.Order {
	s := t.signal
	idle := t.idle
	t.idle = t.idleIn(r)
	if n := r.Samples[loader.Service] - t.last.Samples[loader.Service]; n > 0 {
		sum := r.Sum[loader.Service] - t.last.Sum[loader.Service]
		t.typical += (sum/time.Duration(n) - t.typical) / 4
	}
	in := controller.Tick{
		Now:         now,
		Samples:     r.Samples[s] - t.last.Samples[s],
		Sum:         r.Sum[s] - t.last.Sum[s],
		MaxInFlight: max(t.last.InFlight-idle, r.InFlight-t.idle),
		Refused:     r.Rejected - t.last.Rejected + r.WouldReject - t.last.WouldReject,
		Observing:   t.mode == config.ModeObserve || t.overridden.limit != nil,
	}
	if r.RefusedIn == t.tick {
		in.Refused = max(in.Refused, 1) // or had to wait, for want of a slot
	}
	if r.PeakTick == t.tick {
		in.MaxInFlight = max(in.MaxInFlight, r.Peak-min(idle, t.idle))
	}
	if window != nil {
		in.Histogram = window
		if s == loader.RTT {
			in.Samples = window.Count
			in.Sum = window.Quantile(rttQuantile) * time.Duration(in.Samples)
		}
	}
	if r.CohortEpoch == t.decision.CohortEpoch+t.epoch {
		unfinished := uint64(max(r.CohortJoined-r.CohortDone, 0))
		in.Cohort = controller.Cohort{
			Epoch:    t.decision.CohortEpoch,
			Admitted: r.CohortJoined,
			Done:     r.CohortDone,
			Sum:      r.CohortSum,
			Ages:     max(time.Duration(unfinished*uint64(now)-r.CohortStarts), 0),
		}
	}
	if t.holder != nil {
		held := t.holder.TargetStats(t.id).QueueCounts
		in.Refused += refusedIn(held) - refusedIn(t.held)
		t.held = held
	}
	t.noteFlood(now, r, log)
	t.last = *r

	byHand := t.overridden.limit != nil // until now, at least: then no step of the algorithm's changes it
	if t.expire(now) {
		log.Info("the limit that was set by hand has expired", "rule", t.config.Rule.Name, "port", t.config.Port,
			"scope", t.config.Rule.Scope.String())
	}
	before := t.decision.Limit
	t.decision = t.algo.Decide(in)
	if t.decision.Limit != before && !byHand {
		t.change = change{reason: string(t.decision.Reason), at: now}
		log.Debug("limit changed", "rule", t.config.Rule.Name, "port", t.config.Port,
			"scope", t.config.Rule.Scope.String(), "from", before, "to", t.decision.Limit)
	}
	switch {
	case in.Samples == 0:
		t.windows.empty++
	case t.decision.Limit != before:
		t.windows.changed++
	default:
		t.windows.unchanged++
	}
	t.tick++
	t.interval = t.pacing.interval(now, r.Admitted, t.decision.Limit, mean(in))
	return t.order()
}

// inVain counts the units that holders refused, now or under an earlier rule.
func (t *target) inVain() uint64 { return refusedIn(t.vain) + refusedIn(t.held) }

// refusedIn counts the units that waited in vain, or that there was no place for.
func refusedIn(h pace.QueueCounts) uint64 { return h.TimedOut + h.Overflowed }

func mean(t controller.Tick) time.Duration {
	if t.Samples == 0 {
		return 0
	}
	return t.Sum / time.Duration(t.Samples)
}

// idleIn is how many connections of a reading are only kept open. Algorithms
// reason about work (Little's law: busy = throughput x time), and these are
// none. Without this, a few idle ones would hold the whole limit and let nobody
// in.
func (t *target) idleIn(r *loader.Reading) int {
	if !t.adaptive || !t.timed || t.config.Rule.Unit == config.UnitRequest {
		return 0
	}
	return min(r.Idle, r.InFlight)
}

// enforced turns a limit of units that are worked on into one of connections.
func (t *target) enforced(limit int) int {
	return min(limit+t.idle, max(t.most, limit))
}

func (t *target) order() loader.Order {
	d, rule := t.decision, t.config.Rule
	limit, after := t.limits()
	o := loader.Order{
		Enforce:      t.mode == config.ModeEnforce,
		Limit:        limit,
		AfterRefusal: after,
		Signal:       t.signal,
		Accept:       rule.Signal == config.SignalAccept,
		Tick:         t.tick,
		CohortEpoch:  d.CohortEpoch + t.epoch,
		CohortSize:   d.CohortSize,
		Requests:     rule.Unit == config.UnitRequest,
		Ingress:      t.decidesOnDevices(),
		Drop:         rule.Reject == config.RejectDrop,
		Doubt:        t.doubt(),
		PaceInterval: t.interval,
		PaceCredit:   time.Duration(rule.Pace.Burst-1) * t.interval,
		Idle:         rule.End.Idle,
		Strangers:    t.listener.strangers,
	}
	if rule.Waits() {
		o.MaxWaiting = rule.Hold.MaxWaiting
		o.MaxWait = rule.Hold.MaxWait
		o.PaceMaxWait = rule.Pace.MaxWait
	}
	return o
}

// decidesOnDevices reports whether arrivals are. A request ends with its
// response: where no program sees that, none may take a slot.
func (t *target) decidesOnDevices() bool {
	return t.ingress && (t.timed || t.config.Rule.Unit != config.UnitRequest)
}

// doubt is how soon after a request output is more likely to be session tickets
// of TLS than a response, where it may be either. A server sends them at once,
// but one with many handshakes to do is late with that.
func (t *target) doubt() time.Duration {
	switch {
	case t.typical > 0:
		return t.typical / 2
	case t.settled:
		return 0
	}
	return time.Second
}

// listen takes in what the target's listeners look like now. The kernel counts
// what each has dropped, and takes the number along when it is closed. Strays are
// in it, too; how many found a full queue is counted for all listeners together.
func (t *target) listen(now listenerState) {
	was := t.listener
	now.overflows = was.overflows
	if now.dropped > was.dropped && now.overflowed > was.overflowed && was.present {
		now.overflows += min(now.dropped-was.dropped, now.overflowed-was.overflowed)
	}
	t.listener = now
	if now.present {
		t.timed = now.timed
	}
}

// status reports the target.
func (t *target) status(now time.Duration) status.Target {
	var baseline, gradient float64
	for _, term := range t.algo.Terms() {
		switch term.Name {
		case "baseline_seconds":
			baseline = term.Value
		case "gradient":
			gradient = term.Value
		}
	}
	rule, r := t.config.Rule, &t.last
	limit, _ := t.limits()
	window := &t.followed().window
	st := status.Target{
		Rule:        rule.Name,
		Port:        t.config.Port,
		Scope:       rule.Scope.String(),
		Unit:        string(rule.Unit),
		Mode:        string(t.mode),
		Listening:   t.listener.present,
		Algorithm:   rule.Limit.Algorithm,
		Limit:       limit,
		AtFloor:     t.floor > 0 && t.decision.Limit <= t.floor,
		InFlight:    r.InFlight,
		Waiting:     r.Waiting,
		Connections: r.Connections,
		Pending:     r.Pending,
		Flood:       now < r.FloodUntil,
		Signal:      string(rule.Signal),
		Window: status.Window{
			Samples:     window.samples,
			MeanSeconds: window.mean.Seconds(),
			P50Seconds:  window.p50.Seconds(),
			P99Seconds:  window.p99.Seconds(),
		},
		BaselineSeconds:     baseline,
		Gradient:            gradient,
		ThroughputPerSecond: t.service.perSecond(),
		TCPRTTSeconds: status.TCPRTT{
			HandshakeP50: t.handshake.window.p50.Seconds(),
			Min:          t.trips.window.min.Seconds(),
			P50:          t.trips.window.p50.Seconds(),
		},
		AcceptQueue: status.AcceptQueue{
			Length:         t.listener.queued,
			Max:            t.listener.backlog,
			OverflowsTotal: t.listener.overflows,
		},
		AdmittedTotal: r.Admitted,
		RejectedTotal: status.Rejected{
			Limit: r.Rejected + t.vain.Overflowed + t.held.Overflowed, Pace: r.RejectedPace, Source: r.RejectedSource,
			Flood: r.RejectedFlood, HoldTimeout: t.vain.TimedOut + t.held.TimedOut,
		},
		HeldTotal:        r.Held,
		BypassedTotal:    r.Bypassed,
		ExemptedTotal:    r.Exempted,
		WouldRejectTotal: r.WouldReject,
		FinishedTotal:    r.Finished,
		TrimmedTotal:     r.Trimmed,
		Recount:          t.recounted.status(now),
	}
	t.reportSources(&st)
	if rule.Paced() {
		st.Pace = status.Pace{RatePerSecond: t.pacing.perSecond, MaxWaitSeconds: rule.Pace.MaxWait.Seconds()}
	}
	if rule.Waits() {
		st.Hold = status.Hold{
			MaxWaitSeconds: rule.Hold.MaxWait.Seconds(),
			MaxWaiting:     rule.Hold.MaxWaiting,
			Order:          string(rule.Hold.Order),
		}
	}
	st.Exempt = words(rule.Exempt)
	st.Override = t.overridden.status(now)
	if t.change.reason != "" {
		st.LastChange = status.Change{Reason: t.change.reason, SecondsAgo: (now - t.change.at).Seconds()}
	}
	return st
}
