package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"headgate/pkg/loader"
	"headgate/pkg/scope"
	"headgate/pkg/status"
)

// agent asks the agent that may be running, and looks at what one has left.
func (e *examination) agent(ctx context.Context) {
	st, err := e.Ask(ctx)
	if err == nil {
		e.status = st
		e.running(st)
		return
	}
	left, attached, leaseErr := loader.LeaseLeft(e.StateDir)
	e.silent(err, left, attached, leaseErr)
}

// silent says what is known of an agent that did not answer, by what
// [loader.LeaseLeft] says of what is pinned.
func (e *examination) silent(err error, left time.Duration, attached bool, leaseErr error) {
	const (
		about = "agent"
		again = "start it again (it goes on with the counts), or take what it left out of the kernel: headgate cleanup"
	)
	none := errors.Is(err, ErrNoAgent)
	switch {
	case errors.Is(leaseErr, fs.ErrPermission):
		e.add(about, Unseen, "run this as root", "none answers; whether one has left programs in the kernel only root can see: %v", leaseErr)
	case (leaseErr != nil || !attached) && none:
		e.add(about, OK, "", "none is running")
	case leaseErr != nil || !attached:
		e.add(about, Unseen, "", "whether one is running is not known: %v", err)
	case left > 0 && none:
		e.add(about, Warning, "headgate status, with its --listen; if it is gone, "+again,
			"none answers, and the limits that are pinned under %s hold for %.1f s more: one serves elsewhere, or has just died, and then every gate opens when that is over", e.StateDir, left.Seconds())
	case left > 0:
		e.add(about, Warning, "headgate status, with its --listen", "one is running (its lease has %.1f s left), but does not answer: %v", left.Seconds(), err)
	default:
		e.add(about, Trouble, again,
			"the agent is gone (%v), and what it has pinned under %s is still there: nobody has renewed the limits since their lease ended %v ago, so every gate is open, nobody is refused, and counting goes on",
			err, e.StateDir, since(-left))
	}
}

// since is how long something is ago, in a unit that fits.
func since(d time.Duration) time.Duration {
	if d < time.Minute {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}

func (e *examination) running(st *status.Status) {
	const about = "agent"
	for _, p := range st.Problems {
		e.add(about, Trouble, "see its log", "%s", p)
	}
	for _, t := range st.Troubles {
		e.add(about, Trouble, "see its log", "%s: %s", t.Hook, t.Trouble)
	}
	if failed := st.Reload.Failure(); failed != "" {
		e.add("reload", Trouble, "correct it until headgate check is content; it is read again when it changes", "%s", failed)
	}
	switch {
	case st.LeaseAgeSeconds > st.LeaseSeconds:
		if len(st.Problems) == 0 {
			e.add(about, Trouble, "see its log", "its lease was not renewed for %.1f s: every gate is open", st.LeaseAgeSeconds)
		}
	case len(st.Problems)+len(st.Troubles) == 0:
		e.add(about, OK, "", "headgate %s protects %d targets; its lease of %v s was renewed %.1f s ago",
			st.Version, len(st.Targets), st.LeaseSeconds, st.LeaseAgeSeconds)
	}
	for _, t := range st.Targets {
		if !t.Listening {
			e.add("listeners", Warning, "start the server, or correct the rule", "nobody listens on port %d of rule %s (%s)", t.Port, t.Rule, t.Scope)
		}
	}
}

// acceptQueues looks whether connections that are let in find a place with the
// server.
func (e *examination) acceptQueues() {
	const about = "accept-queue"
	most, err := e.number("proc/sys/net/core/somaxconn")
	if err != nil {
		e.add(about, Unseen, "", "%v", err)
		return
	}
	sound := true
	if e.status != nil {
		for _, t := range e.status.Targets {
			sound = e.acceptQueue(t, most) && sound
		}
	}
	if own := e.unasked(); len(own) > 0 {
		listeners, err := scope.Listeners()
		if err != nil {
			e.add(about, Unseen, "", "%v", err)
			return
		}
		for _, port := range own {
			i := slices.IndexFunc(listeners, func(l scope.Listener) bool { return l.Port == port })
			if i < 0 {
				e.add("listeners", Warning, "start the server, or correct the rule", "nobody listens on port %d of the host", port)
				continue
			}
			l := listeners[i]
			t := status.Target{Port: port, AcceptQueue: status.AcceptQueue{Length: l.Queued, Max: l.Backlog, OverflowsTotal: l.Dropped}}
			sound = e.acceptQueue(t, most) && sound
		}
	}
	if sound {
		e.add(about, OK, "", "none is full; none can be longer than net.core.somaxconn, %d", most)
	}
}

// unasked are the ports that the running agent does not protect.
func (e *examination) unasked() []uint16 {
	var own []uint16
	for _, p := range e.Ports {
		known := e.status != nil && slices.ContainsFunc(e.status.Targets, func(t status.Target) bool { return t.Port == p })
		if !known {
			own = append(own, p)
		}
	}
	return own
}

// acceptQueue says whether the queue of one port is sound.
func (e *examination) acceptQueue(t status.Target, somaxconn int) bool {
	const about = "accept-queue"
	q := t.AcceptQueue
	if q.Max == 0 {
		return true // nobody listens
	}
	do := "raise the backlog that the server asks for in listen(2)"
	if q.Max >= somaxconn {
		do = fmt.Sprintf("sysctl -w net.core.somaxconn=%d, and restart the server", 4*somaxconn)
	}
	var wrong []string
	if q.Length >= q.Max {
		wrong = append(wrong, fmt.Sprintf("it is full (%d)", q.Length))
	}
	if q.OverflowsTotal > 0 {
		wrong = append(wrong, fmt.Sprintf("%d connections were lost to it", q.OverflowsTotal))
	}
	if t.Limit > q.Max && t.InFlight > q.Max {
		wrong = append(wrong, fmt.Sprintf("%d may be in flight, and %d may wait for the server", t.Limit, q.Max))
	}
	if len(wrong) == 0 {
		return true
	}
	e.add(about, Warning, do, "port %d: %s", t.Port, strings.Join(wrong, "; "))
	return false
}

// ErrNoAgent is what [Options.Ask] says where no agent is running.
var ErrNoAgent = errors.New("no agent is running")

// ErrTrouble means that something does not work.
var ErrTrouble = errors.New("something does not work, see above")
