// Package status is the state of an agent as it is reported: the types behind
// `headgate status -o json` and /api/v1/status, and their text form.
package status

// Status is the state of an agent at one moment. Times are in seconds.
type Status struct {
	Version      string  `json:"version"`
	Mode         string  `json:"mode"` // enforce or observe
	LeaseSeconds float64 `json:"lease_seconds"`

	// LeaseAgeSeconds is how long ago the lease was renewed; above LeaseSeconds
	// every gate is open.
	LeaseAgeSeconds float64 `json:"lease_age_seconds"`

	Capabilities map[string]bool `json:"capabilities"` // what the kernel can do, by name

	// Problems are why the targets are not protected now, as /readyz says them;
	// none when they are.
	Problems []string `json:"problems"`

	// Reload is absent as long as there was none.
	Reload *Reload `json:"reload,omitempty"`

	Targets []Target `json:"targets"`

	// Unprotected is what rules mean that was found and is not protected.
	Unprotected []Unprotected `json:"unprotected,omitempty"`

	Troubles []HookTrouble `json:"troubles"` // with what headgate has in the kernel
	Shadowed []Shadow      `json:"shadowed"` // hooks where others come first
}

// Unprotected is something that was found for a rule and is not protected, and why.
type Unprotected struct {
	Rule   string `json:"rule"`
	Scope  string `json:"scope"`
	Port   uint16 `json:"port"` // 0: none in particular
	Reason string `json:"reason"`
}

// HookTrouble is something of headgate's in the kernel that is not as it should
// be and could not be repaired.
type HookTrouble struct {
	Hook    string `json:"hook"` // sockops, sk_lookup and so on; state: the directory of pins
	Trouble string `json:"trouble"`
}

// Shadow is a program of somebody else that sees an arrival before headgate's,
// or can decide otherwise.
type Shadow struct {
	Hook string `json:"hook"`
	At   string `json:"at"`   // the scope, and the device where there is one
	ID   uint32 `json:"id"`   // of the program, as in bpftool prog; 0 for a filter that is none
	Name string `json:"name"` // of the program; empty where the kernel does not tell
}

// Target is one protected port. A quantity that has not been measured yet is 0.
type Target struct {
	Rule  string `json:"rule"`
	Port  uint16 `json:"port"`
	Scope string `json:"scope"` // host, netns:NAME, cgroup:PATH, pod:NAMESPACE/NAME
	Unit  string `json:"unit"`  // connection or request
	Mode  string `json:"mode"`  // enforce or observe

	Listening bool `json:"listening"` // somebody listens on the port

	// Override is what was set by hand in place of what the rule says; absent for
	// nothing.
	Override *Override `json:"override,omitempty"`

	// Exempt are the networks that the rule says are neither counted nor refused;
	// what was changed of that by hand is in Override.
	Exempt []string `json:"exempt,omitempty"`

	Algorithm string `json:"algorithm"`
	Limit     int    `json:"limit"`     // the most units in flight, as enforced now
	AtFloor   bool   `json:"at_floor"`  // the algorithm's limit is its min
	InFlight  int    `json:"in_flight"` // units admitted and not finished
	Waiting   int    `json:"waiting"`   // units held
	Pending   int    `json:"pending"`   // units of InFlight that are reservations still

	// Flood: SYNs come that nobody stands behind, and who is a stranger takes no
	// slot before its handshake is complete.
	Flood bool `json:"flood"`

	// Connections are those that are open, where the unit is a request; 0
	// where it is a connection, and InFlight says it.
	Connections int `json:"connections"`

	Signal              string  `json:"signal"`
	Window              Window  `json:"window"`
	BaselineSeconds     float64 `json:"baseline_seconds"` // the latency with no queue
	Gradient            float64 `json:"gradient"`         // baseline / latency: 1 is no queue
	ThroughputPerSecond float64 `json:"throughput_per_second"`

	TCPRTTSeconds TCPRTT      `json:"tcp_rtt_seconds"`
	Hold          Hold        `json:"hold"`
	Pace          Pace        `json:"pace"`
	AcceptQueue   AcceptQueue `json:"accept_queue"`

	// Totals count from when the target was first protected.
	AdmittedTotal    uint64   `json:"admitted_total"`
	RejectedTotal    Rejected `json:"rejected_total"`
	HeldTotal        uint64   `json:"held_total"`     // units that had to wait
	BypassedTotal    uint64   `json:"bypassed_total"` // of these, let in because no agent was there
	ExemptedTotal    uint64   `json:"exempted_total"`
	WouldRejectTotal uint64   `json:"would_reject_total"` // in observe mode
	FinishedTotal    uint64   `json:"finished_total"`
	TrimmedTotal     uint64   `json:"trimmed_total"` // of those admitted, the ones that there was no slot for: ended at once

	// Loopback is what is made of clients on the host itself: counted, exempt, or
	// partly exempt, where that is so for one of IPv4 and IPv6.
	Loopback string  `json:"loopback"`
	Classes  []Class `json:"classes,omitempty"` // with those of no class at the end

	LastChange Change  `json:"last_change"`
	Recount    Recount `json:"recount"`
}

// Class is a part of the clients that has a share of the limit for itself.
type Class struct {
	Name          string  `json:"name"`  // others: those that are of no class
	Share         float64 `json:"share"` // of the limit, guaranteed
	Limit         int     `json:"limit"` // what is guaranteed, units; of others: what is free to all
	InFlight      int     `json:"in_flight"`
	Waiting       int     `json:"waiting"`
	RejectedTotal uint64  `json:"rejected_total"` // on arrival, for whatever reason
}

// Recount is what the last recount had to correct: by how much more was counted
// than there was; negative where less was.
type Recount struct {
	InFlight    int     `json:"in_flight"`
	Waiting     int     `json:"waiting"`
	Pending     int     `json:"pending"`
	Connections int     `json:"connections"` // where the unit is a request
	Idle        int     `json:"idle"`        // connections at rest
	SecondsAgo  float64 `json:"seconds_ago"`
}

// Override is what was set by hand.
type Override struct {
	Limit            *int     `json:"limit,omitempty"`
	ExpiresInSeconds *float64 `json:"expires_in_seconds,omitempty"` // of the limit; absent: never
	Mode             string   `json:"mode,omitempty"`
	Exempt           []string `json:"exempt,omitempty"`     // networks, beside those of the rule
	NotExempt        []string `json:"not_exempt,omitempty"` // of those of the rule
}

// Reload is what became of the last attempt to read the configuration again.
type Reload struct {
	Successful bool    `json:"successful"`
	SecondsAgo float64 `json:"seconds_ago"`
	Error      string  `json:"error,omitempty"` // why the configuration before stays in force
}

// Window is the last window of samples of the target's signal.
type Window struct {
	Samples     uint64  `json:"samples"`
	MeanSeconds float64 `json:"mean_seconds"`
	P50Seconds  float64 `json:"p50_seconds"`
	P99Seconds  float64 `json:"p99_seconds"`
}

// TCPRTT is the round trip time of the target's connections in the last window.
type TCPRTT struct {
	HandshakeP50 float64 `json:"handshake_p50"`
	Min          float64 `json:"min"`
	P50          float64 `json:"p50"`
}

// Hold is how units wait that cannot be admitted at once; MaxWaiting 0 is not
// at all.
type Hold struct {
	MaxWaitSeconds float64 `json:"max_wait_seconds"` // for a free slot
	MaxWaiting     int     `json:"max_waiting"`      // units at once, also of those that wait by the pace
	Order          string  `json:"order"`            // fifo or lifo; empty where none waits
}

// Pace is the pacing of admissions; rate 0 is none.
type Pace struct {
	RatePerSecond  float64 `json:"rate_per_second"` // as enforced now
	MaxWaitSeconds float64 `json:"max_wait_seconds"`
}

// AcceptQueue is the listener's queue of established connections that the
// application has not accepted.
type AcceptQueue struct {
	Length         int    `json:"length"`
	Max            int    `json:"max"`
	OverflowsTotal uint64 `json:"overflows_total"`
}

// Rejected counts rejections by reason.
type Rejected struct {
	Limit       uint64 `json:"limit"`        // the limit was reached
	Pace        uint64 `json:"pace"`         // its pace slot was too far off
	Source      uint64 `json:"source"`       // its source's own limit was reached
	Flood       uint64 `json:"flood"`        // a stranger in flood mode, where the kernel makes no SYN cookies
	HoldTimeout uint64 `json:"hold_timeout"` // held, and no slot came free in time
}

// Change is the last change of the limit.
type Change struct {
	Reason     string  `json:"reason"` // empty when it has not changed
	SecondsAgo float64 `json:"seconds_ago"`
}
