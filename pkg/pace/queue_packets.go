package pace

import "slices"

const (
	// What one flow may have in the queue. Beyond, its packets are dropped and
	// sent again by its client.
	maxPackets = 64
	maxBytes   = 256 << 10

	// mostBytes is what all flows may have beside the first packet of each, which
	// is bounded by their number.
	mostBytes = 64 << 20
)

// addPacket puts a packet where it belongs among those of its flow. What it
// repeats is dropped: the older packet may be gone from the kernel without
// anybody having been told, the newer one is there.
func (q *Queue) addPacket(w *waiter, p Packet) {
	w.device = p.Device
	kept := w.packets[:0]
	for _, old := range w.packets {
		if w.flow.SYN || repeats(p, old) {
			w.target.counts.Replaced++
			w.bytes -= old.Len
			q.bytes -= int(old.Len)
			q.do(Action{Act: Drop, Flow: w.flow, Packet: old})
			continue
		}
		kept = append(kept, old)
	}
	w.packets = kept
	if len(kept) > 0 && (len(kept) >= maxPackets || w.bytes+p.Len > maxBytes || q.bytes+int(p.Len) > mostBytes) {
		w.target.counts.Excess++
		q.do(Action{Act: Drop, Flow: w.flow, Packet: p})
		return
	}
	w.insert(p)
	q.bytes += int(p.Len)
}

// repeats says whether p has all the data of old.
func repeats(p, old Packet) bool {
	return int32(old.Seq-p.Seq) >= 0 && int32(p.Seq+p.Len-old.Seq-old.Len) >= 0
}

func (w *waiter) insert(p Packet) {
	at := len(w.packets)
	for at > 0 && int32(w.packets[at-1].Seq-p.Seq) > 0 {
		at--
	}
	w.packets = slices.Insert(w.packets, at, p)
	w.bytes += p.Len
}
