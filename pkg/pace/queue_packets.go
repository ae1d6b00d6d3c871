package pace

import "slices"

const (
	// room is what the packets in the queue may take of the kernel's memory, in
	// bytes, those excepted that are the first of their flow: each of these has a
	// place, of 64 KB at the most, for as many flows as their policies let wait.
	room = 64 << 20

	// overhead is what a packet takes beside its payload, about.
	overhead = room / queueLength

	// mostPackets is how many one flow may have. The kernel searches its queue from
	// the oldest packet on for each verdict, and the verdicts on a flow are given in
	// one go. A window of 1 MB of Ethernet's packets fits.
	mostPackets = 1024
)

// cost is what a packet takes of the room.
func (p Packet) cost() int { return int(p.Len) + overhead }

// end is the sequence number behind a packet.
func (p Packet) end() uint32 { return p.Seq + p.Len }

// addPacket puts a packet where it belongs among those of its flow. What it
// repeats is dropped: the older packet may be gone from the kernel without
// anybody having been told, the newer one is there.
//
// A flow may take as much of the room as is left to all others: half of it when
// it is alone, an (n+1)th when n flows send what they can. So few have room for a
// large window, many still for some packets each, and who comes last finds room.
// This is the dynamic threshold of Choudhury and Hahne, with alpha = 1
// (IEEE/ACM Transactions on Networking 6(2), 1998). What is over it is dropped,
// and sent again by its client; what it repeats stays then.
func (q *Queue) addPacket(w *waiter, p Packet) {
	w.device = p.Device
	repeated, freed := 0, 0
	for _, old := range w.packets {
		if w.repeats(p, old) {
			repeated++
			freed += old.cost()
		}
	}
	full := len(w.packets)-repeated >= mostPackets || w.bytes+q.bytes-2*freed+p.cost() > room
	if full && p.cost() > freed && repeated < len(w.packets) {
		w.target.counts.Excess++
		q.do(Action{Act: Drop, Flow: w.flow, Packet: p})
		return
	}
	w.packets = slices.DeleteFunc(w.packets, func(old Packet) bool {
		if !w.repeats(p, old) {
			return false
		}
		w.target.counts.Replaced++
		q.do(Action{Act: Drop, Flow: w.flow, Packet: old})
		return true
	})
	at, _ := slices.BinarySearchFunc(w.packets, w.offset(p)+1, func(old Packet, to int) int { return w.offset(old) - to })
	w.packets = slices.Insert(w.packets, at, p)
	w.bytes += p.cost() - freed
	q.bytes += p.cost() - freed
}

// repeats says whether p has all the data of another packet of the flow. One SYN
// is like any other.
func (w *waiter) repeats(p, other Packet) bool {
	from, to := w.offset(p), w.offset(other)
	return w.flow.SYN || from <= to && from+int(p.Len) >= to+int(other.Len)
}

// offset is where a packet begins, from the first that came of its flow. Sequence
// numbers wrap: only by their distance from one point are all in one order.
func (w *waiter) offset(p Packet) int { return int(int32(p.Seq - w.origin)) }

// pass notes that a packet was let go.
func (w *waiter) pass(p Packet) {
	if int32(p.end()-w.passed) > 0 {
		w.passed = p.end()
	}
}
