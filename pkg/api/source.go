// Package api serves the agent's state over HTTP and reads it back.
package api

import (
	"headgate/pkg/events"
	"headgate/pkg/explain"
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
	// Explain returns why the limit of a target is what it is; false when there
	// is no such target. scope is as in its status.
	Explain(scope string, port uint16) (*explain.Explanation, bool)
	// Events returns what happens.
	Events() *events.Bus
}
