package agent

import (
	"fmt"

	"headgate/pkg/config"
	"headgate/pkg/loader"
)

// Lacking says what a rule needs that the kernel cannot do; nil if there is
// nothing.
func Lacking(r *config.Rule, able map[loader.Capability]bool) error {
	follows := (r.Signal == config.SignalService || r.Signal == config.SignalAccept) && r.Limit.Algorithm != "fixed"
	switch {
	case r.NeedsIngress() && !able[loader.CanHold]:
		return fmt.Errorf("rule %s: this kernel cannot hold arrivals on their devices (%s), which unit: request, hold, pace with a max_wait and reject: drop need", r.Name, loader.CanHold)
	case r.Unit == config.UnitRequest && !able[loader.CanService]:
		return fmt.Errorf("rule %s: this kernel cannot see the packets of connections (%s), which unit: request needs", r.Name, loader.CanService)
	case r.Signal == config.SignalAccept && !able[loader.CanAccept]:
		return fmt.Errorf("rule %s: this kernel cannot tell when an application reads (%s), which signal: accept needs; use signal: service or signal: connection", r.Name, loader.CanAccept)
	case follows && !able[loader.CanService]:
		return fmt.Errorf("rule %s: this kernel cannot time the service (%s), which the limit follows; use signal: rtt or signal: connection, or a fixed limit", r.Name, loader.CanService)
	}
	return nil
}
