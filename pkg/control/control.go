// Package control is what a running agent can be told: the requests that its
// socket takes, and the ways in which they are refused.
package control

import (
	"errors"
	"time"

	"headgate/pkg/status"
)

// Errors that a caller can tell apart.
var (
	// ErrUnknown means that no target is meant.
	ErrUnknown = errors.New("no such target")

	// ErrAmbiguous means that several are, where one has to be.
	ErrAmbiguous = errors.New("more than one target")

	// ErrForce means that it looks like a mistake, and is done with force.
	ErrForce = errors.New("refused without force")

	// ErrInvalid means that the request says something that cannot be.
	ErrInvalid = errors.New("invalid")
)

const (
	// MaxLimit is the highest limit that can be set.
	MaxLimit = 1 << 30

	// MaxFor is how long a limit can be set for at most.
	MaxFor = 366 * 24 * time.Hour
)

// Limit sets the limit of a target by hand, or with Clear has it computed again.
type Limit struct {
	// Target names it: PORT, the NAME of a rule, NAME:PORT, or SCOPE/PORT. A name
	// stands for all ports of the rule, a port for one target.
	Target string `json:"target"`

	Limit int  `json:"limit"` // 0 to MaxLimit
	Clear bool `json:"clear,omitempty"`

	// ForSeconds is when it ends by itself; 0: never. At most MaxFor.
	ForSeconds float64 `json:"for_seconds,omitempty"`

	Force bool `json:"force,omitempty"` // a limit of 0 is meant
}

// Mode switches targets between enforce and observe. The mode that the
// configuration says ends what was set before.
type Mode struct {
	Target string `json:"target,omitempty"` // empty: every one
	Mode   string `json:"mode"`
}

// Exempt adds a network to those that are exempt on targets, or with Remove takes
// one away, also one that the rule names.
type Exempt struct {
	Target  string `json:"target,omitempty"` // empty: every one
	Network string `json:"network"`          // such as 10.0.0.0/8, or an address
	Remove  bool   `json:"remove,omitempty"`
	Force   bool   `json:"force,omitempty"` // that everybody is exempt is meant
}

// Reload has the configuration read again.
type Reload struct {
	// SSHPort is the port of the ssh session that asks, 0 for none: a rule for
	// it is a likely mistake.
	SSHPort uint16 `json:"ssh_port,omitempty"`
}

// Answer is what is said when a request was carried out.
type Answer struct {
	Targets []status.Target `json:"targets"` // those that were meant, as they are now
}
