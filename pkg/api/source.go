// Package api serves the agent's state over HTTP and reads it back.
package api

import (
	"headgate/pkg/events"
	"headgate/pkg/metrics"
	"headgate/pkg/status"
)

// Source is the agent as the HTTP server sees it. Its methods are called from
// several goroutines at once.
type Source interface {
	metrics.Source

	// Status returns the state at this moment.
	Status() status.Status

	// NotReady returns why the agent does not protect its targets now, one
	// plain sentence each; none when it does.
	NotReady() []string
	// Events returns what happens.
	Events() *events.Bus
}
