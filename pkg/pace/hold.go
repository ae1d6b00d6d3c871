package pace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	nfqueue "github.com/florianl/go-nfqueue"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"headgate/pkg/rtt"
	"headgate/pkg/scope"
)

// Gate is where slots are counted: the kernel's maps. device is the interface
// index that the flow's newest packet came in by.
type Gate interface {
	// Held returns how a flow stands and, if it waits, what for.
	Held(f Flow, device uint32) (Hold, Standing, error)

	// Claim takes a slot for a flow that waits.
	Claim(f Flow, device uint32) (Outcome, error)

	// Delivered says that the packets of a claimed flow were let go up to a
	// sequence number. With more of them on their way here, those that come now
	// are queued behind them; without, they need not be any more.
	Delivered(f Flow, device, passed uint32) (more bool, err error)

	// GiveUp says that a flow waits no longer, if it does.
	GiveUp(f Flow, device uint32) error
}

// Standing is how the gate knows a flow.
type Standing uint8

const (
	// Unknown: it does not wait. A SYN has no slot either.
	Unknown Standing = iota
	// Waits: it waits.
	Waits
	// HasSlot: a SYN that has a slot, or needs none.
	HasSlot
)

const (
	// copied is how much of a packet is looked at: all headers that can matter.
	copied = 256

	// readBuffer is for the bursts that come while the agent is not scheduled:
	// 20000 packets (measured). Beyond, the kernel drops them.
	readBuffer = 8 << 20

	// queueLength is the most packets in the queue. Beyond, the kernel drops
	// them.
	queueLength = 1 << 16

	openTries = 20
)

// HolderOptions are what a [Holder] needs.
type HolderOptions struct {
	Netns *scope.Netns // used until Close, not closed
	Queue uint16       // number of the netfilter queue, used by nobody else
	Mark  uint32       // bits that a held packet has set, cleared when it is let go
	Gate  Gate
	Log   *slog.Logger

	// Refused is told of every flow that is refused; nil for nobody. It must
	// return soon and not call the Holder.
	Refused func(Flow, Refusal)
}

// Holder holds the marked packets of one network namespace: it reads them from
// a netfilter queue and gives each its verdict. It is safe for concurrent use.
//
// A packet that the kernel drops, because there are too many in the queue or
// because another program changed the packet filter, is not lost: its client
// sends it again, and it takes the place that its flow has kept. That is why
// the queue does not fail open: what passes unseen is counted as waiting.
type Holder struct {
	log     *slog.Logger
	gate    Gate
	refused func(Flow, Refusal)
	mark    uint32
	nfq     *nfqueue.Nfqueue
	refuser *refuser
	timer   *timer
	stop    context.CancelFunc
	wait    sync.WaitGroup
	close   func() error

	mu      sync.Mutex
	queue   *Queue
	ports   map[uint16]uint32
	targets map[uint32]*HeldStats
	stats   HolderStats
	queued  uint64        // packets that the kernel had for the queue: the last number, beyond its 32 bits
	freed   time.Duration // when the slot was that is given away now; 0: not
	closing bool
	failure error   // of the reader: nothing is held any more
	trouble trouble // last seen
}

// HolderStats counts what belongs to no target.
type HolderStats struct {
	Packets uint64 // read from the queue
	Missed  uint64 // dropped by the kernel, since the queue was not read fast enough
	Passed  uint64 // of these, not held: no such target, or let in meanwhile
	Stale   uint64 // of these, dropped: SYNs that nobody waits for any more
	Lost    uint64 // verdicts on packets that the kernel had dropped meanwhile
	Resets  uint64 // clients that were shown that they are not let in
	Errors  uint64 // calls that failed

	// HandOver is the time from the end of one unit to the verdict that lets
	// the next one in.
	HandOver rtt.Histogram
}

// HeldStats is what was held for one target.
type HeldStats struct {
	QueueCounts
	Waiting int
	Waits   rtt.Histogram // from the arrival of a flow that was let in until then
	Late    rtt.Histogram // from its pace slot until then, of those that had one
}

// OpenHolder begins to hold. The rule that fills the queue may be there
// already: without a reader packets pass by it.
func OpenHolder(o HolderOptions) (_ *Holder, err error) {
	h := &Holder{
		log:     o.Log,
		gate:    o.Gate,
		refused: o.Refused,
		mark:    o.Mark,
		queue:   NewQueue(),
		ports:   make(map[uint16]uint32),
		targets: make(map[uint32]*HeldStats),
	}
	h.close = sync.OnceValue(h.end)
	if h.refuser, err = newRefuser(o.Netns); err != nil {
		return nil, fmt.Errorf("hold: %w", err)
	}
	if h.timer, err = newTimer(); err != nil {
		return nil, errors.Join(fmt.Errorf("hold: %w", err), h.refuser.close())
	}
	// The library sets the queue up in several steps, and a packet that comes
	// between two of them it mistakes for the answer to the second: one attempt
	// in five, at 20000 packets a second.
	for range openTries {
		if err = h.open(o); err == nil {
			break
		}
	}
	if errors.Is(err, unix.EPERM) { // the rights for it are those that the rest has taken
		err = fmt.Errorf("another program reads from it, perhaps an agent with a state directory of its own: %v", err)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("hold: netfilter queue %d: %w", o.Queue, err), h.timer.close(), h.refuser.close())
	}
	h.wait.Go(h.watchTimer)
	return h, nil
}

func (h *Holder) open(o HolderOptions) error {
	netns := 0 // the own one: to enter it all the same would take CAP_SYS_ADMIN
	if !o.Netns.Own() {
		netns = o.Netns.Fd()
	}
	nfq, err := nfqueue.Open(&nfqueue.Config{
		NetNS:        netns,
		NfQueue:      o.Queue,
		MaxQueueLen:  queueLength,
		MaxPacketLen: copied,
		Copymode:     nfqueue.NfQnlCopyPacket,
		// Without it a large packet comes in pieces.
		Flags: nfqueue.NfQaCfgFlagGSO,
	})
	if err != nil {
		return err
	}
	if err := setUpSocket(nfq.Con); err != nil {
		return errors.Join(err, nfq.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	h.nfq, h.stop = nfq, stop
	// Packets may come before this returns; they wait for the lock.
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := nfq.RegisterWithErrorFunc(ctx, h.receive, h.receiveError); err != nil {
		stop()
		return errors.Join(err, nfq.Close())
	}
	return nil
}

func setUpSocket(c *netlink.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, readBuffer)
	})
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("read buffer: %w", err)
	}
	// Otherwise one packet that does not fit has all others dropped too until
	// the buffer is empty. What was dropped is counted by the socket.
	if err := c.SetOption(netlink.NoENOBUFS, true); err != nil {
		return fmt.Errorf("no ENOBUFS: %w", err)
	}
	return nil
}

// SetTarget says which target has a port of the namespace, and how its flows
// wait. Packets of other ports are let go.
func (h *Holder) SetTarget(port uint16, target uint32, p Policy) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ports[port] = target
	h.queue.SetPolicy(target, p)
	if h.targets[target] == nil {
		h.targets[target] = &HeldStats{}
	}
}

// DropTarget undoes SetTarget for a port. Who waits is let go, and meets the
// rules that hold by then. So does who was told to wait, but is read only later.
func (h *Holder) DropTarget(port uint16) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target, ok := h.ports[port]
	if !ok {
		return
	}
	delete(h.ports, port)
	h.queue.Drop(target)
	h.act()
	delete(h.targets, target)
}

// Wake says that slots of a target may be free, since that time on
// CLOCK_MONOTONIC; 0 if for another reason than the end of a unit. When it
// returns, the verdicts are given.
func (h *Holder) Wake(target uint32, freed time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing {
		return
	}
	h.freed = freed
	h.queue.Wake(monotonic(), target)
	h.act()
	h.freed = 0
}

// Stats returns what was counted since the beginning.
func (h *Holder) Stats() HolderStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stats
	s.Missed = max(h.queued, s.Packets) - s.Packets
	return s
}

// TargetStats returns what was held for a target since the beginning.
func (h *Holder) TargetStats(target uint32) HeldStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	var s HeldStats
	if t := h.targets[target]; t != nil {
		s = *t
	}
	s.QueueCounts = h.queue.Counts(target)
	s.Waiting = h.queue.Waiting(target)
	return s
}

// Err returns why nothing is held any more: nil while it is.
func (h *Holder) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failure
}

// Close lets everything go that is held, and ends the Holder. It may be called
// more than once.
func (h *Holder) Close() error { return h.close() }

// LetGo lets everything go that is held, and whatever comes from now on.
func (h *Holder) LetGo() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closing = true
	h.queue.Clear()
	h.act()
}

func (h *Holder) end() error {
	h.LetGo()
	h.stop()
	err := errors.Join(h.timer.close(), h.nfq.Close())
	h.wait.Wait()
	return errors.Join(err, h.refuser.close())
}

func (h *Holder) watchTimer() {
	for h.timer.wait() {
		h.mu.Lock()
		h.timer.armed = never
		if !h.closing {
			h.queue.Tick(monotonic())
			h.act()
		}
		h.mu.Unlock()
	}
}

// receive takes a packet from the queue.
func (h *Holder) receive(a nfqueue.Attribute) int {
	if a.PacketID == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Packets++
	// The kernel numbers packets before it hands them over, or cannot.
	h.queued += uint64(max(0, int32(*a.PacketID-uint32(h.queued))))
	p := Packet{ID: *a.PacketID}
	if a.Mark != nil {
		p.Mark = *a.Mark
	}
	if a.InDev != nil {
		p.Device = *a.InDev
	}
	f, ok := h.identify(a, &p)
	if !ok || h.closing {
		h.stats.Passed++
		if !ok && f.SYN { // see DropTarget: it was on its way here
			h.note("give up a flow", h.gate.GiveUp(f, p.Device))
		}
		h.verdict(p, nfqueue.NfAccept)
		return 0
	}
	now := monotonic()
	if !h.queue.Join(now, f, p) {
		hold, is, err := h.gate.Held(f, p.Device)
		h.note("ask the gate for a flow", err)
		switch {
		case is == Waits && err == nil:
			h.queue.Arrive(now, f, hold, p)
		case is == Unknown && err == nil && f.SYN:
			// It has waited here for so long that the programs gave it up. Its
			// client sends another, which has its turn.
			h.stats.Stale++
			h.verdict(p, nfqueue.NfDrop)
		default:
			h.stats.Passed++
			h.queue.Pass(now, f, p)
		}
	}
	h.act()
	return 0
}

func (h *Holder) identify(a nfqueue.Attribute, p *Packet) (f Flow, ok bool) {
	if a.Payload == nil {
		return Flow{}, false
	}
	total := len(*a.Payload)
	if a.CapLen != nil {
		total = int(*a.CapLen)
	}
	hd, ok := parseHeaders(*a.Payload, total)
	if !ok {
		return Flow{}, false
	}
	target, ok := h.ports[hd.server.Port()]
	p.Seq, p.Len = hd.seq, hd.len
	return Flow{Target: target, Client: hd.client, Server: hd.server, SYN: hd.syn}, ok
}

// receiveError is for what is read that is no packet.
func (h *Holder) receiveError(err error) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closing:
		return 1
	case errors.Is(err, unix.ENOENT):
		// The answer to a verdict: the packet was not there any more.
		h.stats.Lost++
		return 0
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		return 0
	}
	var op *netlink.OpError
	if errors.As(err, &op) && op.Timeout() {
		return 0
	}
	h.failure = fmt.Errorf("read from the netfilter queue: %w", err)
	h.log.Error("cannot hold any more: whoever comes passes", "error", err)
	h.closing = true
	h.queue.Clear()
	h.act()
	return 1
}

// act does what the queue says.
func (h *Holder) act() {
	for a, ok := h.queue.Next(); ok; a, ok = h.queue.Next() {
		switch a.Act {
		case Accept:
			h.verdict(a.Packet, nfqueue.NfAccept)
			if h.freed != 0 {
				h.stats.HandOver.Record(monotonic() - h.freed)
				h.freed = 0
			}
		case Drop:
			h.verdict(a.Packet, nfqueue.NfDrop)
		case Claim:
			h.claim(a)
		case Deliver:
			more, err := h.gate.Delivered(a.Flow, a.Device, a.Passed)
			h.note("end a delivery", err)
			if !more || err != nil {
				h.queue.Delivered(a.Flow)
			}
		case GiveUp:
			if a.Refused != "" && h.refused != nil {
				h.refused(a.Flow, a.Refused)
			}
			h.note("give up a flow", h.gate.GiveUp(a.Flow, a.Device))
		case Reset:
			h.stats.Resets++
			h.note("refuse a client", h.refuser.refuse(a.Flow, a.Packet))
		}
	}
	if at, ok := h.queue.Due(); ok {
		h.note("wait", h.timer.arm(at))
	}
}

// claim asks for a slot. Where nobody can tell the gate is open.
func (h *Holder) claim(a Action) {
	o, err := h.gate.Claim(a.Flow, a.Device)
	h.note("claim a slot", err)
	if err != nil {
		o = Claimed
	}
	now := monotonic()
	if o == Claimed || o == ClaimedLast {
		t := h.targets[a.Flow.Target]
		t.Waits.Record(now - a.Arrived)
		if a.Release != 0 {
			t.Late.Record(now - a.Release)
		}
	}
	h.queue.Answer(now, a.Flow, o)
}

func (h *Holder) verdict(p Packet, verdict int) {
	var err error
	if verdict == nfqueue.NfAccept {
		err = h.nfq.SetVerdictWithMark(p.ID, verdict, int(p.Mark&^h.mark))
	} else {
		err = h.nfq.SetVerdict(p.ID, verdict)
	}
	if h.closing && errors.Is(err, unix.EBADF) {
		return // it was on its way here; the kernel drops it, and its client sends it again
	}
	h.note("give a verdict", err)
}

// note counts an error, and logs it when it is not like the last: of a flood each
// has another client in its text.
func (h *Holder) note(doing string, err error) {
	if err == nil {
		return
	}
	h.stats.Errors++
	now := trouble{doing: doing}
	if !errors.As(err, &now.cause) {
		now.text = err.Error()
	}
	if now != h.trouble {
		h.log.Error("holding", "cannot", doing, "error", err)
	}
	h.trouble = now
}

// trouble is what an error is told from others by.
type trouble struct {
	doing string
	cause unix.Errno
	text  string // where no call to the kernel is the cause
}
