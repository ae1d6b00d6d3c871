package pace

import (
	"net/netip"
	"time"
)

// Flow is what waits for its turn: a SYN, or a request on a connection.
type Flow struct {
	Target uint32
	Client netip.AddrPort
	Server netip.AddrPort
	SYN    bool
}

// Packet is one packet of a flow, held by the kernel until its verdict.
type Packet struct {
	ID     uint32 // of the netfilter queue
	Mark   uint32 // as it came
	Device uint32 // interface index that it came in by
	Seq    uint32 // first sequence number
	Len    uint32 // sequence numbers: the payload, and one for each of SYN and FIN
}

// Hold is what the kernel knows of a flow that it holds.
type Hold struct {
	// Release is when the flow's pace slot is, on CLOCK_MONOTONIC; 0 when it
	// waits for nothing but a free slot.
	Release time.Duration

	// Refused says why it waits only to be refused; empty where it does not.
	Refused Refusal
}

// Policy says how the flows of a target wait.
type Policy struct {
	// MaxWaiting is the most flows that wait. What arrives beyond is refused.
	MaxWaiting int

	// MaxWait is for how long a flow waits at most, from its arrival, or from
	// its pace slot when it has one.
	MaxWait time.Duration

	// NewestFirst serves the flow that came last, not the one that came first:
	// under an overload that lasts, some then wait shortly and others in vain,
	// where otherwise all wait for long.
	NewestFirst bool

	// Group says where a client belongs; nil puts all in one group.
	Group func(netip.Addr) Group

	// Reset refuses by a reset, which the client sees at once. Otherwise its
	// packets are dropped, and it tries again for as long as it cares to.
	Reset bool
}

// Group is who waits in one line with whom. Classes have their turn one after
// the other, and in a class its sources have: the order of the [Policy] holds
// within one source. A class may find that there is no slot for it while there is
// one for another.
type Group struct {
	Class  int
	Source netip.Prefix
}

// Refusal is why a flow that waited, or wanted to, is refused.
type Refusal string

const (
	RefusedLimit   Refusal = "limit"        // as many wait as may
	RefusedPace    Refusal = "pace"         // its pace slot is too far off
	RefusedSource  Refusal = "source"       // as many of its source are here as may be
	RefusedTimeout Refusal = "hold_timeout" // it has waited for as long as it may
)

// Act is something for the owner of a [Queue] to do.
type Act uint8

const (
	// Accept lets a packet go.
	Accept Act = iota
	// Drop drops a packet.
	Drop
	// Claim asks the gate for a slot; the outcome goes to [Queue.Answer].
	Claim
	// Deliver asks the gate whether more packets of a claimed flow are on their
	// way; when there are none, [Queue.Delivered] is told.
	Deliver
	// Reset refuses a flow so that its client sees it.
	Reset
	// GiveUp tells the gate that a flow waits no longer.
	GiveUp
)

// Action is one thing to do, and to which flow or packet.
type Action struct {
	Act     Act
	Flow    Flow
	Packet  Packet        // of Accept and Drop; of Reset the newest one of the flow
	Device  uint32        // of the others: that the flow's newest packet came in by
	Passed  uint32        // of Deliver: sequence number behind what was let go
	Arrived time.Duration // of Claim
	Release time.Duration // of Claim
	Refused Refusal       // of GiveUp: why; empty when its client has gone
}

// Outcome is the gate's answer to a claim.
type Outcome uint8

const (
	// Claimed: the flow has a slot.
	Claimed Outcome = iota
	// ClaimedLast: so it has, and there is none for others now.
	ClaimedLast
	// Full: there is none, the flow stays at the head.
	Full
	// Gone: the flow waits no longer; its client has given up.
	Gone
)
