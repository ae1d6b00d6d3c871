package pace

import (
	"fmt"
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
	expect(t, "in", pump(q, now, &free), "in 1", "+4", "+5", "+6", "delivered 1")
	if q.Counts(1).Replaced != 3 || q.Counts(1).Held != 1 {
		t.Errorf("%+v", q.Counts(1))
	}
}

// Whatever sequence numbers a client invents, the packets of its flow stay in one
// order, and none is lost.
func TestFarPackets(t *testing.T) {
	for _, at := range []uint32{0, 5, 10, 100, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
		q, now, free := testQueue(Policy{}), queueStart, 0
		q.Arrive(now, testFlow(1), Hold{}, Packet{ID: 1, Seq: at + 1<<31 + 5, Len: 100})
		q.Join(now, testFlow(1), Packet{ID: 2, Seq: at, Len: 10})
		q.Join(now, testFlow(1), Packet{ID: 3, Seq: at + 1<<30, Len: 10})
		q.Join(now, testFlow(1), Packet{ID: 4, Seq: at + 1<<31, Len: 200})
		expect(t, "the last repeats the first", pump(q, now, &free), "-1")
		free = 1
		q.Wake(now, 1)
		expect(t, "in", pump(q, now, &free), "in 1", "+3", "+4", "+2", "delivered 1") // -2^30 - 5, -5, 2^31 - 5
		if q.bytes != 0 {
			t.Errorf("%d bytes are left in an empty queue", q.bytes)
		}
	}
}

// A packet that is on its way here when another agent, or none, has let its flow
// in, ends that as well.
func TestPacketsBehindSomebodyElsesFlow(t *testing.T) {
	q, now, free := testQueue(Policy{}), queueStart, 0
	q.Pass(now, testFlow(1), Packet{ID: 1, Seq: 1<<32 - 4, Len: 10, Device: 7})
	a, _ := q.Next()
	expect(t, "it goes", []string{fmt.Sprint(a.Act, a.Packet.ID)}, fmt.Sprint(Accept, 1))
	a, _ = q.Next()
	if want := (Action{Act: Deliver, Flow: testFlow(1), Device: 7, Passed: 6}); a != want {
		t.Errorf("then %+v, want %+v", a, want)
	}
	q.Delivered(testFlow(1)) // of which nothing is known
	syn := testFlow(2)
	syn.SYN = true
	q.Pass(now, syn, Packet{ID: 2, Len: 1})
	expect(t, "nothing comes behind a SYN", pump(q, now, &free), "+2")
}

// What is on its way here when a flow has its turn is let go behind the rest,
// until the gate says that it was the last.
func TestPacketsBehindAGrantedFlow(t *testing.T) {
	f := testFlow(1)
	base := uint32(1<<32 - 15)
	granted := func(t *testing.T) *Queue {
		q, free := testQueue(Policy{}), 1
		q.Arrive(queueStart, f, Hold{}, Packet{ID: 1, Seq: base, Len: 10})
		expect(t, "in", pumpMore(q, queueStart, &free, true), "in 1", "+1", "more of 1 from 4294967291?")
		if q.Join(queueStart, f, Packet{ID: 2, Seq: base + 10, Len: 10}) {
			t.Error("joined a flow that waits no longer")
		}
		return q
	}
	more := func(q *Queue, now time.Duration, more bool) []string {
		free := 0
		return pumpMore(q, now, &free, more)
	}

	t.Run("they come", func(t *testing.T) {
		q, now := granted(t), queueStart
		q.Pass(now, f, Packet{ID: 2, Seq: base + 10, Len: 10})
		expect(t, "second", more(q, now, true), "+2", "more of 1 from 5?")
		q.Pass(now, f, Packet{ID: 3, Seq: base, Len: 10})
		expect(t, "an old one", more(q, now, true), "+3", "more of 1 from 5?")
		q.Pass(now, f, Packet{ID: 4, Seq: base + 20, Len: 10})
		expect(t, "third", more(q, now, false), "+4", "delivered 1")
		q.Pass(now, f, Packet{ID: 5, Seq: base + 30, Len: 10})
		expect(t, "all were there", more(q, now, true), "+5", "more of 1 from 25?")
		if _, ok := q.Due(); ok {
			t.Error("something is left to do")
		}
	})
	t.Run("they were lost", func(t *testing.T) {
		q := granted(t)
		at, _ := q.Due()
		if at != queueStart+askAgain {
			t.Errorf("due after %v", at-queueStart)
		}
		q.Tick(at)
		expect(t, "asked again", more(q, at, true), "more of 1 from 4294967291?")
		q.Tick(at + askAgain)
		expect(t, "it has ended", more(q, at+askAgain, false), "delivered 1")
		if _, ok := q.Due(); ok {
			t.Error("something is left to do")
		}
	})
	t.Run("its next request is here", func(t *testing.T) {
		q, now := granted(t), queueStart
		q.Arrive(now, f, Hold{}, Packet{ID: 2, Seq: base + 10, Len: 10})
		expect(t, "second waits", more(q, now, true))
		if q.Waiting(1) != 1 {
			t.Errorf("%d wait", q.Waiting(1))
		}
	})
	for what, end := range map[string]func(*Queue){
		"the queue is emptied": (*Queue).Clear,
		"its target is let go": func(q *Queue) { q.Drop(1) },
	} {
		t.Run(what, func(t *testing.T) {
			q := granted(t)
			end(q)
			expect(t, "left to the gate", more(q, queueStart, true), "more of 1 from 4294967291?")
			if len(q.flows) != 0 || len(q.timers) != 0 {
				t.Errorf("%d flows, %d timers are left", len(q.flows), len(q.timers))
			}
		})
	}
}

// All flows that send what they can have the same room, and one more finds as
// much.
func TestRoomIsShared(t *testing.T) {
	for n, size := range map[int]uint32{1: 64 << 10, 2: 32 << 10, 40: 16 << 10, 500: 16 << 10} {
		cost := int(size) + overhead
		q, now, free := testQueue(Policy{}), queueStart, 0
		for f := range n {
			q.Arrive(now, testFlow(f), Hold{}, Packet{Len: size})
		}
		for i, sent := uint32(1), true; sent; i++ {
			sent = false
			for f := range n {
				q.Join(now, testFlow(f), Packet{ID: i, Seq: i * size, Len: size})
				sent = pump(q, now, &free) == nil || sent
			}
		}
		fair := room / (n + 1)
		for f := range n {
			if has := q.flows[testFlow(f)].bytes; has > fair+cost || has < fair-cost {
				t.Errorf("%d flows: number %d has %d bytes of %d", n, f, has, fair)
			}
		}
		if q.bytes > room {
			t.Errorf("%d flows: %d bytes", n, q.bytes)
		}
		q.Arrive(now, testFlow(n), Hold{}, Packet{Len: size})
		q.Join(now, testFlow(n), Packet{Seq: size, Len: size})
		expect(t, "one more", pump(q, now, &free))

		free = n + 1
		q.Wake(now, 1)
		pump(q, now, &free)
		if q.bytes != 0 {
			t.Errorf("%d bytes are left in an empty queue", q.bytes)
		}
	}
}

// A client that sends byte by byte has no more packets in the queue than one that
// fills a window of 1 MB.
func TestTooManyPackets(t *testing.T) {
	q, now, free := testQueue(Policy{}), queueStart, 0
	const segment = 1448
	q.Arrive(now, testFlow(1), Hold{}, Packet{Len: segment})
	for i := uint32(1); i <= 1<<20/segment; i++ {
		q.Join(now, testFlow(1), Packet{ID: i, Seq: i * segment, Len: segment})
	}
	expect(t, "1 MB", pump(q, now, &free))

	q.Arrive(now, testFlow(2), Hold{}, Packet{Len: 1})
	for i := range uint32(mostPackets - 1) {
		q.Join(now, testFlow(2), Packet{ID: i + 1, Seq: i + 1, Len: 1})
	}
	expect(t, "as many as may be", pump(q, now, &free))
	q.Join(now, testFlow(2), Packet{ID: 5000, Seq: 5000, Len: 1})
	expect(t, "one more", pump(q, now, &free), "-5000")
	q.Join(now, testFlow(2), Packet{ID: 5001, Seq: 7, Len: 1})
	expect(t, "one again", pump(q, now, &free), "-7")
	if n := len(q.flows[testFlow(2)].packets); n != mostPackets {
		t.Errorf("%d packets, want %d", n, mostPackets)
	}
}

// What a packet repeats that there is no room for stays.
func TestNoRoomForALargerOne(t *testing.T) {
	q, now, free := testQueue(Policy{}), queueStart, 0
	q.Arrive(now, testFlow(1), Hold{}, Packet{ID: 1, Len: 10})
	q.Join(now, testFlow(1), Packet{ID: 2, Seq: 10, Len: 10})
	q.Arrive(now, testFlow(2), Hold{}, Packet{ID: 3, Len: room})
	expect(t, "full", pump(q, now, &free))
	q.Join(now, testFlow(1), Packet{ID: 4, Seq: 10, Len: 3000})
	expect(t, "a larger one", pump(q, now, &free), "-4")
	q.Join(now, testFlow(1), Packet{ID: 5, Seq: 10, Len: 10})
	expect(t, "one of the same size", pump(q, now, &free), "-2")
	free = 1
	q.Wake(now, 1)
	expect(t, "in", pump(q, now, &free), "in 1", "+1", "+5", "delivered 1")
}

func TestNoRoom(t *testing.T) {
	q, now, free := testQueue(Policy{}), queueStart, 0
	q.Arrive(now, testFlow(1), Hold{}, Packet{ID: 1, Len: room + 1})
	expect(t, "the first may be of any size", pump(q, now, &free))
	q.Join(now, testFlow(1), Packet{ID: 2, Seq: room + 1, Len: 1})
	expect(t, "no more", pump(q, now, &free), "-2")
	q.Arrive(now, testFlow(2), Hold{}, Packet{ID: 3, Len: 10})
	expect(t, "but the first of another", pump(q, now, &free))
	q.Join(now, testFlow(2), Packet{ID: 4, Len: 10})
	expect(t, "the same again", pump(q, now, &free), "-3")
	if c := q.Counts(1); c.Excess != 1 || c.Replaced != 1 {
		t.Errorf("%+v", c)
	}
	free = 1
	q.Wake(now, 1)
	expect(t, "it leaves", pump(q, now, &free), "in 1", "+1", "delivered 1")
	q.Join(now, testFlow(2), Packet{ID: 5, Seq: 10, Len: 10})
	expect(t, "there is room again", pump(q, now, &free))
}
