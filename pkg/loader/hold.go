package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"headgate/pkg/scope"
)

// HoldMark is what the program on a device sets in the mark of a packet that
// has to wait, for the rule that queues it to see.
const HoldMark = 0x10000000

// IngressProgram returns the program for the devices of a namespace, which goes on
// to the one of all namespaces. The caller attaches and closes it.
func (g *Gate) IngressProgram(ns *scope.Netns) (*ebpf.Program, error) {
	return g.loadFor(ns, headgateProgHeadgateArrive)
}

// DevicesDir is where what is attached to devices is pinned.
func (g *Gate) DevicesDir() string { return g.state.devices() }

// DevicesDir is the same for a state directory that nobody has open.
func DevicesDir(state string) string { return filepath.Join(state, devicesName) }

// Claim is the kernel's answer about a unit that waits.
type Claim uint32

// The answers, in the order of the kernel's.
const (
	Gone Claim = iota // it does not wait, or no longer
	Full              // there is no slot for it
	Done
	In   // it does not wait, for it has a slot or needs none
	Last // Done, and there is no other slot
)

// The questions, in the order of the kernel's.
const (
	claimWhen = iota
	claimSlot
	claimDelivered
	claimGiveUp
	claimIdle
)

// Claimer speaks with the kernel about the units of one namespace that wait.
// It is not safe for concurrent use.
type Claimer struct {
	prog   *ebpf.Program // the gate's
	cookie uint64        // of the namespace
	ipv4   [14 + 20 + 20]byte
	ipv6   [14 + 40 + 20]byte

	// The kernel looks for connections in the namespace of the calling thread.
	// Where that is not the agent's own, the thread goes there and comes back:
	// that takes a tenth of what it takes to have another thread ask.
	own, there *scope.Netns // nil, nil where they are the same
}

// NewClaimer returns a Claimer for a namespace, which must be open for as long
// as it is.
func (g *Gate) NewClaimer(ns *scope.Netns) (*Claimer, error) {
	p := g.progs[headgateProgHeadgateClaim]
	if p == nil {
		return nil, fmt.Errorf("claim slots: %s", CanHold.Otherwise())
	}
	own, err := scope.OpenNetns("")
	if err != nil {
		return nil, err
	}
	c := &Claimer{prog: p, cookie: ns.Cookie()}
	if own.Cookie() == ns.Cookie() {
		return c, own.Close()
	}
	c.own, c.there = own, ns
	return c, nil
}

// Close lets go of what the Claimer has opened.
func (c *Claimer) Close() error {
	if c.own == nil {
		return nil
	}
	return c.own.Close()
}

// The releases of units that are to be refused.
const (
	Never     = time.Duration(math.MaxInt64) // its pace slot is too far off
	NotSource = Never - 1                    // as many of its source are here as may be
)

// Unit is what is asked about: a SYN, or a request on a connection.
type Unit struct {
	Client, Server netip.AddrPort
	SYN            bool

	// Device is what its packets come in by, by interface index, or what its
	// socket is bound to; 0: not known. A socket that is bound to a device is
	// found only with it, and so is every IPv6 one of a link-local client.
	Device uint32

	seq uint32 // of its packet
}

// When says what a unit does: wait ([Done]), and when its pace slot is, on
// CLOCK_MONOTONIC; 0 when it waits for a free slot alone, or [Never]. Or it does
// not wait: [Gone], and for a SYN that has its slot, [In].
func (c *Claimer) When(u Unit) (release time.Duration, is Claim, err error) {
	is, release, err = c.ask(claimWhen, u)
	return release, is, err
}

// Claim gives a unit that waits a slot, if there is one.
func (c *Claimer) Claim(u Unit) (Claim, error) {
	answer, _, err := c.ask(claimSlot, u)
	return answer, err
}

// Delivered says that what was held of a claimed request is on its way, up to the
// sequence number passed. Either that is all which has come: what its client sends
// from now on need not be queued behind it. Or there is more, which is queued.
func (c *Claimer) Delivered(u Unit, passed uint32) (more bool, err error) {
	u.seq = passed
	answer, _, err := c.ask(claimDelivered, u)
	return answer == Full, err
}

// GiveUp says that a unit waits no longer.
func (c *Claimer) GiveUp(u Unit) error {
	_, _, err := c.ask(claimGiveUp, u)
	return err
}

// Idle ends a request whose response is over. Otherwise it says when to look
// again, on CLOCK_MONOTONIC; 0 when there is no such request any more.
func (c *Claimer) Idle(u Unit) (again time.Duration, err error) {
	answer, at, err := c.ask(claimIdle, u)
	if answer != Full {
		at = 0
	}
	return at, err
}

// skBuff is struct __sk_buff: what is not named must be 0.
type skBuff struct {
	_      [2]uint32
	Mark   uint32
	_      [7]uint32
	Device uint32
	_      uint32
	Netns  [2]uint32 // the cookie's lower half, and its upper one, in cb
	_      [24]uint32
	Tstamp uint64
	_      [8]uint32
}

func halves(cookie uint64) [2]uint32 { return [2]uint32{uint32(cookie), uint32(cookie >> 32)} }

func (c *Claimer) ask(op uint32, u Unit) (Claim, time.Duration, error) {
	in, out := skBuff{Mark: op, Device: u.Device, Netns: halves(c.cookie)}, skBuff{}
	run := func() (uint32, error) {
		return c.prog.Run(&ebpf.RunOptions{Data: c.packet(u), Context: in, ContextOut: &out})
	}
	answer, err := c.inside(run)
	if errors.Is(err, unix.ENODEV) { // it is gone; what is not bound to it is not
		in.Device = 0
		answer, err = c.inside(run)
	}
	if err != nil {
		return Gone, 0, fmt.Errorf("claim a slot: %w", err)
	}
	return Claim(answer), time.Duration(out.Tstamp), nil
}

// inside calls run in the namespace that the units are in.
func (c *Claimer) inside(run func() (uint32, error)) (uint32, error) {
	if c.there == nil {
		return run()
	}
	runtime.LockOSThread()
	if err := unix.Setns(c.there.Fd(), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return 0, fmt.Errorf("enter network namespace: %w", err)
	}
	answer, err := run()
	if back := unix.Setns(c.own.Fd(), unix.CLONE_NEWNET); back != nil {
		// The thread stays locked, and ends with its goroutine.
		return 0, fmt.Errorf("leave network namespace: %w", back)
	}
	runtime.UnlockOSThread()
	return answer, err
}

// packet makes the headers that the kernel finds the unit by.
func (c *Claimer) packet(u Unit) []byte {
	var b, tcp []byte
	if from, to := u.Client.Addr().Unmap(), u.Server.Addr().Unmap(); from.Is4() {
		b = c.ipv4[:]
		binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IP)
		b[14] = 0x45
		binary.BigEndian.PutUint16(b[16:], 40)
		b[23] = unix.IPPROTO_TCP
		copy(b[26:], from.AsSlice())
		copy(b[30:], to.AsSlice())
		tcp = b[34:]
	} else {
		b = c.ipv6[:]
		binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IPV6)
		b[14] = 0x60
		binary.BigEndian.PutUint16(b[18:], 20)
		b[20] = unix.IPPROTO_TCP
		copy(b[22:], from.AsSlice())
		copy(b[38:], to.AsSlice())
		tcp = b[54:]
	}
	binary.BigEndian.PutUint16(tcp, u.Client.Port())
	binary.BigEndian.PutUint16(tcp[2:], u.Server.Port())
	binary.BigEndian.PutUint32(tcp[4:], u.seq)
	tcp[12] = 5 << 4
	tcp[13] = 0x10 // ACK
	if u.SYN {
		tcp[13] = 0x02
	}
	return b
}
