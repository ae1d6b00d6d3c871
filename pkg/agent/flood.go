package agent

import (
	"log/slog"
	"time"

	"headgate/pkg/loader"
)

// noteFlood says when flood mode begins and when it is over.
func (t *target) noteFlood(now time.Duration, r *loader.Reading, log *slog.Logger) {
	was := t.flood
	if t.flood = now < r.FloodUntil; t.flood == was {
		return
	}
	log = log.With("rule", t.config.Rule.Name, "port", t.config.Port, "scope", t.config.Rule.Scope.String())
	if t.flood {
		t.trimmed = t.last.Trimmed
		log.Warn("SYN flood: clients that are not known take no slot before their handshake is complete")
	} else {
		log.Info("the SYN flood is over", "ended_over_limit", r.Trimmed-t.trimmed)
	}
}
