package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Sync brings every device of the namespace into the state it should have,
// once. It returns what failed; devices that vanish meanwhile did not.
func (a *Attacher) Sync() error {
	if err := a.pass(nil, true); err != nil {
		return err
	}
	var errs []error
	for _, f := range a.Failed() {
		if classify(f.Err) != unable {
			errs = append(errs, fmt.Errorf("attach to %s: %w", f.Name, f.Err))
		}
	}
	return errors.Join(errs...)
}

// pass lists the devices and acts on those that are new, due for another try
// or among suspects; when full, on every one. It returns an error
// that concerns them all.
func (a *Attacher) pass(suspects map[int]bool, full bool) error {
	if a.noProg {
		return errors.New("no program to attach")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.kernel.enter(func() error {
		listed, err := a.kernel.devices()
		if err != nil {
			return fmt.Errorf("list devices: %w", err)
		}
		present := make(map[int]bool, len(listed))
		for _, d := range listed {
			present[d.Index] = true
		}
		for index, t := range a.devices {
			if !present[index] {
				a.forget(index, t.Name)
			}
		}
		if err := a.prune(present); err != nil {
			return err
		}
		now := time.Now()
		for _, d := range listed {
			t := a.devices[d.Index]
			suspect := suspects[d.Index]
			switch {
			case t == nil:
				t = &tracked{}
				a.devices[d.Index] = t
				suspect = true
			case full:
			case suspect:
			case t.tries > 0 && !now.Before(t.retry):
			default:
				continue
			}
			t.Device = d
			if err := a.step(t, suspect); err != nil {
				return err
			}
		}
		return a.settle(full)
	})
}

// step brings one device into the state it should have. A suspect may have
// lost our program by what happened to the device itself.
func (a *Attacher) step(t *tracked, suspect bool) error {
	wanted := a.filter(t.Device)
	if !wanted && !t.wanted && !suspect && t.tries == 0 {
		return nil // it was seen to have nothing of ours
	}
	t.wanted = wanted
	had := t.method
	t.method = ""
	var err error
	if wanted {
		var made bool
		t.method, made, err = a.kernel.attach(t.Device)
		switch {
		case err != nil:
			t.method = ""
		case made && had != "" && !suspect:
			a.log.Warn("somebody removed our program; it is attached again", "device", t.Name)
		case made:
			a.log.Debug("attached", "device", t.Name, "index", t.Index, "method", t.method)
		}
	} else {
		err = a.kernel.detach(t.Device)
	}

	switch classify(err) {
	case none:
		if t.tries > 1 {
			a.log.Info("device is as it should be at last", "device", t.Name, "tries", t.tries+1)
		}
		t.err, t.tries = nil, 0
	case gone:
		a.forget(t.Index, t.Name)
	case unable:
		if t.err == nil {
			a.log.Debug("device cannot have a program", "device", t.Name, "kind", t.Kind, "reason", err)
		}
		t.err, t.tries = err, 0
	case retry:
		a.later(t, err)
	case fatal:
		t.err = err
		return fmt.Errorf("device %s: %w", t.Name, err)
	}
	return nil
}

// later puts off a device that failed. The first failure is no news: the next
// try is soon, and as a rule succeeds.
func (a *Attacher) later(t *tracked, err error) {
	wait := min(firstRetry<<min(t.tries, 10), resync)
	level := slog.LevelDebug
	if t.tries == 1 || t.tries > 1 && t.err != nil && t.err.Error() != err.Error() {
		level = slog.LevelWarn
	}
	t.err = err
	t.tries++
	t.retry = time.Now().Add(wait)
	a.log.Log(context.Background(), level, "device is not as it should be; trying again", "device", t.Name, "in", wait, "reason", err)
}

// forget drops a device that has left the namespace.
func (a *Attacher) forget(index int, name string) {
	delete(a.devices, index)
	a.log.Debug("device is gone", "device", name, "index", index)
	if err := a.kernel.forget(index); err != nil {
		a.log.Warn("cannot drop what was kept for a device that is gone", "device", name, "reason", err)
	}
}

// prune drops, once, what predecessors kept for devices that are gone.
func (a *Attacher) prune(present map[int]bool) error {
	if a.pruned {
		return nil
	}
	kept, err := a.kernel.kept()
	if err != nil {
		return err
	}
	for _, index := range kept {
		if !present[index] {
			if err := a.kernel.forget(index); err != nil {
				return err
			}
		}
	}
	a.pruned = true
	return nil
}

// settle lets go of the programs of predecessors once no device has one.
func (a *Attacher) settle(full bool) error {
	if a.settled || !full {
		return nil
	}
	for _, t := range a.devices {
		if t.tries > 0 {
			return nil
		}
	}
	if err := a.kernel.settle(); err != nil {
		return err
	}
	a.settled = true
	return nil
}

// Detach removes all that is ours from every device of the namespace, and
// nothing else; a clsact only if we made it and nobody uses it. Run must have
// returned.
func (a *Attacher) Detach() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.kernel.enter(func() error {
		listed, err := a.kernel.devices()
		if err != nil {
			return fmt.Errorf("list devices: %w", err)
		}
		var errs []error
		for _, d := range listed {
			if err := a.kernel.detach(d); err != nil && classify(err) != gone {
				errs = append(errs, fmt.Errorf("detach from %s: %w", d.Name, err))
			}
		}
		clear(a.devices)
		if len(errs) > 0 {
			return errors.Join(errs...) // what is noted is needed for the next try
		}
		return a.kernel.clear()
	})
}
