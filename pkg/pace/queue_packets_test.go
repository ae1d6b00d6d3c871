package pace

import (
	"testing"
	"time"
)

func TestPacketsOfAFlow(t *testing.T) {
	q, now, free := testQueue(Policy{}), queueStart, 0
	f := testFlow(1)
	base := uint32(1<<32 - 15) // sequence numbers wrap around on the way
	q.Arrive(now, f, Hold{}, Packet{ID: 1, Seq: base, Len: 10})
	q.Join(now, f, Packet{ID: 2, Seq: base + 20, Len: 10})
	q.Join(now, f, Packet{ID: 3, Seq: base + 10, Len: 10}) // late
	expect(t, "in order", pump(q, now, &free))
	q.Join(now, f, Packet{ID: 4, Seq: base, Len: 10})
	expect(t, "sent again", pump(q, now, &free), "-1")
	q.Join(now, f, Packet{ID: 5, Seq: base + 10, Len: 20})
	expect(t, "two sent again as one", pump(q, now, &free), "-3", "-2")
	q.Join(now, f, Packet{ID: 6, Seq: base + 10, Len: 5})
	expect(t, "a part sent again", pump(q, now, &free))
	free = 1
	q.Wake(now, 1)
	expect(t, "in", pump(q, now, &free), "in 1", "+4", "+5", "+6")
	if q.Counts(1).Replaced != 3 || q.Counts(1).Held != 1 {
		t.Errorf("%+v", q.Counts(1))
	}

	// It has all when nothing came for a moment.
	if q.Join(now, f, Packet{ID: 7, Seq: base + 30, Len: 10}) {
		t.Error("joined a flow that waits no longer")
	}
	q.Pass(now+linger/2, f, Packet{ID: 7, Seq: base + 30, Len: 10})
	expect(t, "one behind", pump(q, now, &free), "+7")
	q.Tick(now + linger)
	expect(t, "too early", pump(q, now, &free))
	at, _ := q.Due()
	q.Tick(at)
	expect(t, "all there", pump(q, now, &free), "delivered 1")
	if at != now+linger/2+linger {
		t.Errorf("delivered after %v", at-now)
	}
}

func TestTooManyPackets(t *testing.T) {
	q, now, free := testQueue(Policy{}), queueStart, 0
	q.Arrive(now, testFlow(1), Hold{}, Packet{Len: 1})
	for i := range uint32(maxPackets - 1) {
		q.Join(now, testFlow(1), Packet{ID: i + 1, Seq: i + 1, Len: 1})
	}
	expect(t, "as many as may be", pump(q, now, &free))
	q.Join(now, testFlow(1), Packet{ID: 1000, Seq: 1000, Len: 1})
	expect(t, "one more", pump(q, now, &free), "-1000")
	q.Join(now, testFlow(1), Packet{ID: 1001, Seq: 0, Len: 1})
	expect(t, "one again", pump(q, now, &free), "-0")

	q = testQueue(Policy{})
	q.Arrive(now, testFlow(1), Hold{}, Packet{ID: 1, Len: maxBytes + 1})
	expect(t, "the first may be of any size", pump(q, now, &free))
	q.Join(now, testFlow(1), Packet{ID: 2, Seq: maxBytes + 1, Len: 1})
	expect(t, "no more", pump(q, now, &free), "-2")
}

// All flows together may have so many bytes beside the first packet of each;
// what leaves makes room.
func TestBytesOfAllFlows(t *testing.T) {
	const each = mostBytes / (maxBytes / 2) // flows that fill it with half of what each may have
	q, now, free := testQueue(Policy{}), time.Second, 0
	for n := range each - 1 {
		q.Arrive(now, testFlow(n), Hold{}, Packet{ID: uint32(n), Len: maxBytes / 2})
	}
	q.Arrive(now, testFlow(each), Hold{}, Packet{ID: 1000, Len: 1})
	expect(t, "these have room", pump(q, now, &free))
	second := Packet{ID: 1001, Seq: maxBytes, Len: maxBytes / 2}
	q.Join(now, testFlow(each), second)
	expect(t, "there is none for more", pump(q, now, &free), "-1001")
	q.Arrive(now, testFlow(each+1), Hold{}, Packet{ID: 1002, Len: maxBytes})
	expect(t, "but for another flow", pump(q, now, &free))

	free = 3
	q.Wake(now, 1)
	expect(t, "three leave", pump(q, now, &free), "in 0", "+0", "in 1", "+1", "in 2", "+2")
	q.Join(now, testFlow(each), second)
	expect(t, "there is room again", pump(q, now, &free))
	free = 1000
	q.Wake(now, 1)
	pump(q, now, &free)
	q.Tick(now + time.Second)
	pump(q, now, &free)
	if q.bytes != 0 {
		t.Errorf("%d bytes are left in an empty queue", q.bytes)
	}
}
