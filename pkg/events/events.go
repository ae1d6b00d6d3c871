// Package events keeps what happened lately, for people and pipelines to read:
// who was refused, how limits moved, what is wrong with a hook. Whoever notices
// something publishes it; readers follow at their own speed.
package events

import (
	"net/netip"
	"time"
)

// Type says what kind of thing happened.
type Type string

// The types of events.
const (
	Rejection   Type = "rejection"    // a sample of those who were refused, or would have been
	HoldTimeout Type = "hold_timeout" // a sample of those who waited in vain
	LimitChange Type = "limit_change" // at most one a second of each target
	HookTrouble Type = "hook_trouble" // something of ours in the kernel does not do its work, or does it again
	Reload      Type = "reload"       // the configuration was read again
	Operator    Type = "operator"     // somebody changed something by hand
	Missed      Type = "missed"       // this reader was too slow: so many events are gone
)

// Types returns all types.
func Types() []Type {
	return []Type{Rejection, HoldTimeout, LimitChange, HookTrouble, Reload, Operator, Missed}
}

// Event is one thing that happened. Fields that do not belong to its type are
// left out of its JSON form.
type Event struct {
	// Number counts the events of an agent, from 1. Those of a type Missed have
	// that of the last one missed.
	Number uint64    `json:"number"`
	Time   time.Time `json:"time"`
	Type   Type      `json:"type"`

	// What target it is about, if it is about one.
	Rule  string `json:"rule,omitempty"`
	Scope string `json:"scope,omitempty"`
	Port  uint16 `json:"port,omitempty"`
	Unit  string `json:"unit,omitempty"`

	// Of Rejection and HoldTimeout: who, and why: limit, pace, source or
	// hold_timeout.
	Client *netip.AddrPort `json:"client,omitempty"`
	Reason string          `json:"reason,omitempty"` // of LimitChange, too
	LetIn  bool            `json:"let_in,omitempty"` // it would have been refused, but nothing is in force

	// LeftOut counts the refusals of the target since the last that was told of
	// which were not; of Missed, the events.
	LeftOut uint64 `json:"left_out,omitempty"`

	// Of LimitChange: the limit before and after, in units.
	From *int `json:"from,omitempty"`
	To   *int `json:"to,omitempty"`

	// Of HookTrouble, Reload and Operator: whether it is well, and a sentence.
	OK      *bool  `json:"ok,omitempty"`
	Hook    string `json:"hook,omitempty"`
	Message string `json:"message,omitempty"`
}
