package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"headgate/pkg/config"
	"headgate/pkg/device"
	"headgate/pkg/loader"
	"headgate/pkg/netfilter"
	"headgate/pkg/pace"
	"headgate/pkg/scope"
)

// holdQueue is the number of the netfilter queue in which packets wait, the
// same in every namespace: each has its own queues.
const holdQueue = 8437

// holding is what lets arrivals of a scope wait: a program on each device
// marks them, a rule of the packet filter queues them, and the holder gives
// them their turn.
type holding struct {
	prog     *ebpf.Program
	devices  *device.Attacher
	rule     netfilter.Rule
	claimer  *loader.Claimer
	holder   *pace.Holder
	handover tally
	ender    *ender
	stop     context.CancelFunc
	followed chan struct{}
	trouble  error // why arrivals are not held; as of the last look

	// What a start that fails takes away again: it was not there before.
	madeRule, madeDevices bool
}

// pruneHolding takes away what an earlier agent held by, wherever nothing is
// held any more.
func (a *Agent) pruneHolding(places []*place) error {
	dir := a.gate.DevicesDir()
	cookies, err := device.Pinned(dir)
	if err != nil {
		return err
	}
	for _, p := range places {
		if needsIngress(p.next) {
			cookies = slices.DeleteFunc(cookies, func(c uint64) bool { return c == p.netns.Cookie() })
		}
	}
	_, err = cleanNamespaces(cookies, dir, a.log)
	return err
}

func needsIngress(targets map[uint16]*target) bool {
	for _, t := range targets {
		if t.ingress {
			return true
		}
	}
	return false
}

// hold begins to hold in a place. What queues is there before what marks: a
// marked packet that nobody queues passes as if there were a slot for it.
func (a *Agent) hold(s *place) (_ *holding, err error) {
	h := &holding{
		rule:     netfilter.Rule{Netns: s.netns, Mark: loader.HoldMark, Queue: holdQueue},
		followed: make(chan struct{}),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.undo())
		}
	}()
	if h.madeRule, err = h.rule.Ensure(); err != nil {
		return nil, err
	}
	if h.claimer, err = a.gate.NewClaimer(s.netns); err != nil {
		return nil, err
	}
	h.holder, err = pace.OpenHolder(pace.HolderOptions{
		Netns: s.netns,
		Queue: holdQueue,
		Mark:  loader.HoldMark,
		Gate:  waitingRoom{h.claimer},
		Log:   a.log,

		Refused: a.held.add,
	})
	if err != nil {
		return nil, err
	}
	for port, t := range s.next {
		if t.ingress {
			h.holder.SetTarget(port, t.id, t.policy())
		}
	}
	if h.ender, err = newEnder(a.gate, s.netns, a.log); err != nil {
		return nil, err
	}
	h.ender.setTargets(s.next)
	if h.prog, err = a.gate.IngressProgram(s.netns); err != nil {
		return nil, err
	}
	h.devices, err = device.New(s.netns, h.prog, device.Options{Dir: a.gate.DevicesDir(), Log: a.log})
	if err != nil {
		return nil, err
	}
	kept, err := h.devices.Kept()
	if err != nil {
		return nil, err
	}
	h.madeDevices = a.gate.Fresh() || len(kept) == 0
	if err := h.devices.Sync(); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	go func() {
		defer close(h.followed)
		if err := h.devices.Run(ctx); err != nil {
			a.log.Error("devices that appear from now on are not covered", "scope", s.String(), "error", err)
		}
	}()
	return h, nil
}

// look puts the rule back where somebody took it away, and finds out whether
// arrivals are held. Where they are not, they pass.
func (a *Agent) look(s *scopeState) {
	h := s.holding
	log := a.log.With("scope", s.String())
	made, err := h.rule.Ensure()
	if made {
		const what = "somebody removed headgate's rule from the packet filter; it is there again"
		log.Warn(what)
		a.trouble(true, "netfilter", fmt.Sprintf("scope %s: %s", s, what))
	}
	err = errors.Join(err, h.holder.Err())
	switch {
	case err != nil && (h.trouble == nil || h.trouble.Error() != err.Error()):
		log.Error("arrivals are not held: whoever comes passes", "error", err)
		a.trouble(false, "hold", fmt.Sprintf("scope %s: arrivals are not held, whoever comes passes: %v", s, err))
	case err == nil && h.trouble != nil:
		log.Info("arrivals are held again")
		a.trouble(true, "hold", fmt.Sprintf("scope %s: arrivals are held again", s))
	}
	h.trouble = err
}

// close lets everything go that is held and leaves the kernel's side in place.
func (h *holding) close() error {
	var errs []error
	if h.stop != nil {
		h.stop()
		<-h.followed
	}
	if h.holder != nil {
		errs = append(errs, h.holder.Close())
	}
	if h.ender != nil {
		errs = append(errs, h.ender.close())
	}
	if h.claimer != nil {
		errs = append(errs, h.claimer.Close())
	}
	if h.prog != nil {
		errs = append(errs, h.prog.Close())
	}
	return errors.Join(errs...)
}

// remove takes the kernel's side away, before the holder is closed: what marks
// first, then what is held, then the rule.
func (h *holding) remove() error {
	h.madeDevices, h.madeRule = true, true
	return h.undo()
}

// undo is remove for what was made since [Agent.hold] began.
func (h *holding) undo() error {
	var errs []error
	if h.stop != nil {
		h.stop()
		<-h.followed
	}
	if h.madeDevices {
		errs = append(errs, h.devices.Detach())
		h.drain()
	}
	errs = append(errs, h.close())
	if h.madeRule {
		errs = append(errs, netfilter.Remove(h.rule.Netns))
	}
	return errors.Join(errs...)
}

// drain lets everything go that waits. Nothing comes any more: but for a moment the
// kernel's queue is empty then. What it has when it goes with its rule is lost, which
// the kernel may warn of (nf_reinject, seen on Linux 6.1).
func (h *holding) drain() {
	const most = 100 * time.Millisecond
	h.holder.LetGo()
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if queues, err := netfilter.Queues(h.rule.Netns); err != nil || queues[holdQueue].Held == 0 {
			return
		}
	}
}

// policy says how the units of a target wait.
func (t *target) policy() pace.Policy {
	r := t.config.Rule
	return pace.Policy{
		MaxWaiting:  r.Hold.MaxWaiting,
		MaxWait:     r.Hold.MaxWait,
		NewestFirst: r.Hold.Order == config.OrderLIFO,
		Reset:       r.Reject == config.RejectReset,
		Group:       t.group(),
	}
}

// waitingRoom is the kernel's count of those that wait, as the holder asks it.
type waitingRoom struct{ *loader.Claimer }

func (w waitingRoom) Held(f pace.Flow, device uint32) (pace.Hold, pace.Standing, error) {
	release, is, err := w.When(unit(f, device))
	standing := pace.Unknown
	switch is {
	case loader.Done:
		standing = pace.Waits
	case loader.In:
		standing = pace.HasSlot
	}
	hold := pace.Hold{Release: release}
	switch release {
	case loader.Never:
		hold.Refused = pace.RefusedPace
	case loader.NotSource:
		hold.Refused = pace.RefusedSource
	}
	return hold, standing, err
}

func (w waitingRoom) Claim(f pace.Flow, device uint32) (pace.Outcome, error) {
	answer, err := w.Claimer.Claim(unit(f, device))
	switch answer {
	case loader.Full:
		return pace.Full, err
	case loader.Done:
		return pace.Claimed, err
	case loader.Last:
		return pace.ClaimedLast, err
	}
	return pace.Gone, err
}

func (w waitingRoom) Delivered(f pace.Flow, device, passed uint32) (more bool, err error) {
	return w.Claimer.Delivered(unit(f, device), passed)
}

func (w waitingRoom) GiveUp(f pace.Flow, device uint32) error {
	return w.Claimer.GiveUp(unit(f, device))
}

func unit(f pace.Flow, device uint32) loader.Unit {
	return loader.Unit{Client: f.Client, Server: f.Server, SYN: f.SYN, Device: device}
}

// CleanUp removes what is left of headgate under a state directory and in the
// namespaces that it was active in, as far as they can be found. It returns how
// many programs it detached. [loader.ErrInUse] when an agent is running.
func CleanUp(state string, log *slog.Logger) (int, error) {
	return loader.Cleanup(state, func() (int, error) {
		dir := loader.DevicesDir(state)
		cookies, err := device.Pinned(dir)
		if err != nil {
			return 0, err
		}
		return cleanNamespaces(cookies, dir, log)
	})
}

// cleanNamespaces takes all that holds out of namespaces, and returns how many
// programs that were.
func cleanNamespaces(cookies []uint64, dir string, log *slog.Logger) (n int, err error) {
	for _, cookie := range cookies {
		ns, err := scope.FindNetns(cookie)
		if errors.Is(err, scope.ErrNoNetns) {
			continue // it is gone, and all that was in it
		}
		if err != nil {
			return n, err
		}
		detached, err := cleanNetns(ns, dir, log)
		n += detached
		if err := errors.Join(err, ns.Close()); err != nil {
			return n, fmt.Errorf("clean up a network namespace: %w", err)
		}
	}
	return n, nil
}

func cleanNetns(ns *scope.Netns, dir string, log *slog.Logger) (int, error) {
	d, err := device.New(ns, nil, device.Options{Dir: dir, Log: log})
	if err != nil {
		return 0, err
	}
	kept, err := d.Kept()
	return len(kept), errors.Join(err, d.Detach(), netfilter.Remove(ns))
}
