// Package metrics is a Prometheus collector over the state of an agent.
package metrics

import (
	"time"

	"headgate/pkg/status"
)

// Source is where a scrape gets its numbers.
type Source interface {
	// Snapshot returns the state at this moment. It is called from several
	// goroutines at once, and what it returns is not changed afterwards.
	Snapshot() Snapshot
}

// Snapshot is everything that one scrape reports.
type Snapshot struct {
	Status status.Status

	// Details belong to Status.Targets, index by index.
	Details []Detail

	Handover         *Histogram        // from a slot coming free to the verdict that gives it away; nil when none can wait
	LeaseAge         time.Duration     // since the lease was last renewed
	ProgramsAttached map[string]int    // programs attached now, by hook
	Recounts         uint64            // of the counts, that the agent has made
	Shadowed         map[string]int    // programs of others that come before ours, by hook
	MapFull          map[string]uint64 // insertions that a full map refused, by map
	Events           map[string]uint64 // published, by type
	EventsLost       map[string]uint64 // by where
	Loaded           time.Time         // when a configuration was put in force last
	ReloadFailed     bool              // the last reload kept the old configuration
}

// Detail is what a scrape reports of a target beyond its status.
type Detail struct {
	Service *Histogram        // time from request to response; nil when not measured
	TCPRTT  *Histogram        // TCP round trip time; nil when not measured
	Hold    *Histogram        // how long those waited that were then let in; nil when none can wait
	Windows map[string]uint64 // windows by outcome: changed, unchanged, empty
}
