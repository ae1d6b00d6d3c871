package agent

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"headgate/pkg/config"
	"headgate/pkg/discovery"
	"headgate/pkg/events"
)

// reloads is what became of the last reload.
type reloads struct {
	at   time.Time // zero: there was none
	good time.Time // when a configuration was put in force last, at the start too
	err  error     // of the last
}

// Reload puts the configuration that load returns in force, all of it or, with
// an error, nothing. Targets of both configurations keep their counts, and what
// was learned of them where the rule computes the same limit. What becomes of it
// is logged and reported.
func (a *Agent) Reload(load func() (*config.Config, error)) error {
	a.applying.Lock()
	defer a.applying.Unlock()
	cfg, err := load()
	if err == nil {
		err = a.changeable(cfg)
	}
	if err == nil {
		err = discovery.Needs(cfg.Rules, a.api)
	}
	if err == nil {
		err = a.applyFound(cfg, settleReload)
	}
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w (an agent that runs has given up the rights that no rule needed as it started: restart it; the counts stay if it runs with --keep)", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reloads.at, a.reloads.err = time.Now(), err
	if err != nil {
		a.log.Error("the configuration is not reloaded; the one before stays in force", "error", err)
		a.say(events.Reload, false, "the configuration is not reloaded; the one before stays in force: "+err.Error())
		return err
	}
	a.reloads.good = a.reloads.at
	a.log.Info("the configuration is reloaded", "targets", len(a.targets))
	a.say(events.Reload, true, fmt.Sprintf("the configuration is reloaded, with %d targets", len(a.targets)))
	return nil
}

// changeable says which keys of a configuration have another value than in the
// one that is in force and cannot be changed while the agent runs.
func (a *Agent) changeable(cfg *config.Config) error {
	var errs []error
	for _, k := range []struct{ key, was, is string }{
		{"listen", a.cfg.Listen, cfg.Listen},
		{"web_config", a.cfg.WebConfig, cfg.WebConfig},
		{"state", a.cfg.State, cfg.State},
		{"socket", a.cfg.Socket, cfg.Socket},
		{"socket_group", a.cfg.SocketGroup, cfg.SocketGroup},
	} {
		if k.was != k.is {
			errs = append(errs, fmt.Errorf("%s cannot be changed from %q to %q while the agent runs: restart it; the counts stay if it runs with --keep", k.key, k.was, k.is))
		}
	}
	return errors.Join(errs...)
}
