package loader

import (
	"errors"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Capability names something that the running kernel may or may not be able
// to do for us. It is found out by loading the very program, or by attaching it.
type Capability string

// The capabilities that headgate makes use of.
const (
	CanRelease Capability = "sock_release" // a client's reset does not free the slot of a socket in use
	CanService Capability = "service_time" // samples of the service time
	CanAdopt   Capability = "adopt"        // count connections older than the programs
	CanSweep   Capability = "sweep"        // expire reservations on an idle port
	CanHold    Capability = "hold"         // decide on the device, where arrivals can be held
	CanTCX     Capability = "tcx"          // attach to devices by links
	CanRecount Capability = "recount"      // compare the counts with the sockets
	CanAccept  Capability = "accept_time"  // samples of the wait until the application reads
)

// optional are the programs that headgate can do without, and what is lost.
var optional = map[string]Capability{
	headgateProgHeadgateRelease:      CanRelease,
	headgateProgHeadgateIngress:      CanService,
	headgateProgHeadgateEgress:       CanService,
	headgateProgHeadgateAdopt:        CanAdopt,
	headgateProgHeadgateSweep:        CanSweep,
	headgateProgHeadgateForget:       CanSweep,
	headgateProgHeadgateTally:        CanRecount,
	headgateProgHeadgateRecount:      CanRecount,
	headgateProgHeadgateSettle:       CanRecount,
	headgateProgHeadgateCorrect:      CanRecount,
	headgateProgHeadgateCorrectParty: CanRecount,
	headgateProgHeadgateArrive:       CanHold,
	headgateProgHeadgatePacket:       CanHold,
	headgateProgHeadgateClaim:        CanHold,
	headgateProgHeadgateRead:         CanAccept,
}

// Otherwise says what is done where the kernel cannot, for people to read.
func (c Capability) Otherwise() string {
	switch c {
	case CanRelease:
		return "a client's reset frees the slot of a connection that the server works on still"
	case CanService:
		return "no service times: a limit that follows them is refused, and so is unit: request"
	case CanAdopt:
		return "connections older than the agent are not counted"
	case CanSweep:
		return "a handshake that never ends keeps its slot until the port is full"
	case CanHold:
		return "unit: request, hold, pace with a max_wait and reject: drop are refused"
	case CanTCX:
		return "programs are on the devices by clsact"
	case CanRecount:
		return "a count that is wrong stays so, and what is in doubt is looked for among all sockets of the kernel"
	case CanAccept:
		return "a limit that follows signal: accept is refused"
	}
	return ""
}

// hasTCX asks the kernel by attaching to a device that there is not: where
// there is no TCX, that is not what it complains of.
func hasTCX(p *ebpf.Program) bool {
	const noDevice = 1 << 30
	l, err := link.AttachTCX(link.TCXOptions{Interface: noDevice, Program: p, Attach: ebpf.AttachTCXIngress})
	if err == nil {
		l.Close()
	}
	return !errors.Is(err, link.ErrNotSupported)
}
