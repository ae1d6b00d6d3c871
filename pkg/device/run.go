package device

import (
	"context"
	"time"
)

// change is news about a device: it was made, renamed, moved or removed.
type change struct {
	index int
	name  string
	gone  bool
}

// Run attaches to every device of the namespace and follows those that come
// and go, until ctx ends: a new one within 200 ms, and whatever the kernel
// failed to tell within 5 s. Everything stays attached when it returns. The
// error is nil or one that no device can escape, such as a lack of rights.
func (a *Attacher) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		// Subscribed before the devices are listed: none is between the two.
		watch, cancel := context.WithCancel(ctx)
		changes, err := a.kernel.watch(watch)
		if err == nil {
			err = a.follow(ctx, changes)
		}
		cancel()
		if err != nil && classify(err) == fatal {
			return err
		}
		if err != nil {
			a.log.Warn("cannot follow the devices; trying again", "in", resync, "reason", err)
			sleep(ctx, resync)
			continue
		}
		// The kernel had more to tell than it kept room for: list anew.
		sleep(ctx, firstRetry)
	}
	return nil
}

// follow passes over the devices when something changes, a retry is due or
// much time has passed. It returns when changes ends.
func (a *Attacher) follow(ctx context.Context, changes <-chan change) error {
	var (
		suspects = make(map[int]bool)
		full     = true // the next pass is over all
		fullAt   time.Time
		spacing  time.Duration
		ended    time.Time // the last pass
		failures int       // passes that failed, in a row
		timer    = time.NewTimer(0)
	)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case c, ok := <-changes:
			if !ok {
				return nil
			}
			if !a.concerns(c) {
				continue
			}
			if suspects[c.index] = true; len(suspects) == 1 {
				timer.Reset(max(0, time.Until(ended.Add(spacing))))
			}
			continue
		case <-timer.C:
		}

		began := time.Now()
		full = full || !began.Before(fullAt)
		err := a.pass(suspects, full)
		ended = time.Now()
		if err != nil {
			if classify(err) == fatal {
				return err
			}
			if failures++; failures == 2 {
				a.log.Warn("cannot go over the devices; trying again", "reason", err)
			}
			full = true
			timer.Reset(min(firstRetry<<min(failures, 10), resync))
			continue
		}
		failures = 0
		clear(suspects)
		if full {
			full, fullAt = false, ended.Add(resync)
		}
		// However many devices come and go, this is no load; and however long
		// a pass took, the next new device does not wait for long. (With TCX
		// the kernel waits for RCU at each new device: some 10 ms.)
		spacing = min(max(gather, 4*ended.Sub(began)), gatherMost)
		timer.Reset(time.Until(a.due(fullAt)))
	}
}

// concerns says whether a change is news: most are about addresses, carriers
// and counters of devices that we know.
func (a *Attacher) concerns(c change) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.devices[c.index]
	return t == nil && !c.gone || t != nil && (c.gone || t.Name != c.name)
}

// due returns the time of the next retry, latest at the most.
func (a *Attacher) due(latest time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.devices {
		if t.tries > 0 && t.retry.Before(latest) {
			latest = t.retry
		}
	}
	return latest
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
