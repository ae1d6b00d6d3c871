package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// systemd is the service manager that started us, if one did and listens
// (NOTIFY_SOCKET): Type=notify or notify-reload, and WatchdogSec.
type systemd struct{ log *slog.Logger }

func (s systemd) ready()    { s.notify(daemon.SdNotifyReady) }
func (s systemd) stopping() { s.notify(daemon.SdNotifyStopping) }

// reloading says that the configuration is read anew, until done is called.
func (s systemd) reloading() (done func()) {
	s.notify(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
	return s.ready
}

func (s systemd) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.log.Warn("cannot tell the service manager", "state", state, "error", err)
	}
}

// watchdog tells the service manager, where it wants to know, that we are alive,
// as long as alive says so, until ctx ends. When it hears nothing for so long as
// it allows, it kills us and starts us again.
func (s systemd) watchdog(ctx context.Context, alive func() bool) {
	within, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		s.log.Warn("no watchdog", "error", err)
	}
	if within == 0 {
		return
	}
	beat := time.NewTicker(within / 3)
	defer beat.Stop()
	for {
		if alive() {
			s.notify(daemon.SdNotifyWatchdog)
		}
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
		}
	}
}
