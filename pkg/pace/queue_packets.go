package pace

import "slices"

const (
	// room is what the packets in the queue may take of the kernel's memory, in
	// bytes. The first of each flow always has a place; the number of flows is
	// bounded.
	room = 64 << 20

	// overhead is what a packet takes beside its payload, about.
	overhead = room / queueLength
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
// and sent again by its client.
func (q *Queue) addPacket(w *waiter, p Packet) {
	w.device = p.Device
	freed := q.dropRepeated(w, p)
	if over := w.bytes+p.cost() > room-q.bytes; over && p.cost() > freed && len(w.packets) > 0 {
		w.target.counts.Excess++
		q.do(Action{Act: Drop, Flow: w.flow, Packet: p})
		return
	}
	w.packets = slices.Insert(w.packets, w.before(p.Seq+1), p)
	w.bytes += p.cost()
	q.bytes += p.cost()
}

// dropRepeated drops the packets of which p has all the data, and returns what
// they took.
func (q *Queue) dropRepeated(w *waiter, p Packet) (freed int) {
	from, to := w.before(p.Seq), w.before(p.end())
	if w.flow.SYN {
		from, to = 0, len(w.packets)
	}
	kept := from
	for _, old := range w.packets[from:to] {
		if !w.flow.SYN && int32(old.end()-p.end()) > 0 {
			w.packets[kept] = old
			kept++
			continue
		}
		freed += old.cost()
		w.target.counts.Replaced++
		q.do(Action{Act: Drop, Flow: w.flow, Packet: old})
	}
	w.packets = slices.Delete(w.packets, kept, to)
	w.bytes -= freed
	q.bytes -= freed
	return freed
}

// before returns how many of the packets begin before a sequence number.
func (w *waiter) before(seq uint32) int {
	at, _ := slices.BinarySearchFunc(w.packets, seq, func(p Packet, seq uint32) int { return int(int32(p.Seq - seq)) })
	return at
}

// pass notes that a packet was let go.
func (w *waiter) pass(p Packet) {
	if int32(p.end()-w.passed) > 0 {
		w.passed = p.end()
	}
}
