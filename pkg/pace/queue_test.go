package pace

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const queueStart = time.Hour

func testFlow(n int) Flow {
	return Flow{
		Target: 1,
		Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 1000),
		Server: netip.MustParseAddrPort("10.1.0.1:80"),
	}
}

func testQueue(p Policy) *Queue {
	if p.MaxWaiting == 0 {
		p.MaxWaiting = 1000
	}
	if p.MaxWait == 0 { // tests that mean none say 1 ns
		p.MaxWait = 10 * time.Second
	}
	q := NewQueue()
	q.SetPolicy(1, p)
	return q
}

// pump does what the queue says with a gate of that many free slots, and
// returns what happened in words: "in 3" for a claim, "+7" and "-7" for the
// verdicts of packet 7.
func pump(q *Queue, now time.Duration, free *int) []string { return pumpMore(q, now, free, false) }

// pumpMore is pump with a gate that knows whether more packets of the flows that
// had their turn are on their way: "more of 3 from 10?" asks for it.
func pumpMore(q *Queue, now time.Duration, free *int, more bool) []string {
	var did []string
	for a, ok := q.Next(); ok; a, ok = q.Next() {
		name := fmt.Sprint(a.Flow.Client.Addr().As4()[3])
		switch a.Act {
		case Accept:
			did = append(did, fmt.Sprint("+", a.Packet.ID))
		case Drop:
			did = append(did, fmt.Sprint("-", a.Packet.ID))
		case Deliver:
			if more {
				did = append(did, fmt.Sprintf("more of %s from %d?", name, a.Passed))
			} else {
				did = append(did, "delivered "+name)
				q.Delivered(a.Flow)
			}
		case Reset:
			did = append(did, "reset "+name)
		case GiveUp:
			did = append(did, "give up "+name)
		case Claim:
			if *free <= 0 {
				q.Answer(now, a.Flow, Full)
				continue
			}
			*free--
			did = append(did, "in "+name)
			q.Answer(now, a.Flow, Claimed)
		}
	}
	return did
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: -want +got\n%s", what, d)
	}
}

func whole(id uint32) Packet { return Packet{ID: id, Len: 10} }

func TestFirstComesFirstOrLast(t *testing.T) {
	for newestFirst, want := range map[bool][]string{
		false: {"in 1", "+1", "delivered 1", "in 2", "+2", "delivered 2"},
		true:  {"in 3", "+3", "delivered 3", "in 2", "+2", "delivered 2"},
	} {
		q, now, free := testQueue(Policy{NewestFirst: newestFirst}), queueStart, 0
		for n := 1; n <= 3; n++ {
			q.Arrive(now, testFlow(n), Hold{}, whole(uint32(n)))
			expect(t, "full", pump(q, now, &free))
		}
		free = 2
		q.Wake(now, 1)
		expect(t, "two slots", pump(q, now, &free), want...)
		if q.Waiting(1) != 1 {
			t.Errorf("%d wait", q.Waiting(1))
		}
	}
}

func TestPaceSlotsAreKept(t *testing.T) {
	q, now, free := testQueue(Policy{}), queueStart, 100
	for _, n := range []int{2, 0, 1} {
		f := testFlow(n)
		f.SYN = true
		q.Arrive(now, f, Hold{Release: now + time.Duration(n+1)*time.Second}, whole(uint32(n)))
	}
	expect(t, "before", pump(q, now, &free))
	for n := range 3 {
		at, ok := q.Due()
		if want := queueStart + time.Duration(n+1)*time.Second; at != want || !ok {
			t.Fatalf("due at %v, not %v", at, want)
		}
		q.Tick(at)
		expect(t, "slot", pump(q, at, &free), fmt.Sprint("in ", n), fmt.Sprint("+", n))
	}
	if _, ok := q.Due(); ok {
		t.Error("something is due in an empty queue")
	}
}

// The time of a paced flow begins with its slot, and it is let in there even
// when it may not wait for longer and the clock is looked at late.
func TestPacedFlowWaitsFromItsSlot(t *testing.T) {
	for _, maxWait := range []time.Duration{1, 100 * time.Millisecond} {
		q, now, free := testQueue(Policy{MaxWait: maxWait, Reset: true}), queueStart, 1
		slot := now + time.Second
		for n := range 2 {
			q.Arrive(now, testFlow(n), Hold{Release: slot}, whole(uint32(n)))
		}
		q.Tick(slot)
		expect(t, "one slot for two", pump(q, slot, &free), "in 0", "+0", "delivered 0")
		if at, _ := q.Due(); at != slot+min(maxWait, retryAfter) {
			t.Errorf("due %v after the slot", at-slot)
		}
		q.Tick(slot + maxWait)
		expect(t, "time over", pump(q, slot+maxWait, &free), "reset 1", "-1", "give up 1")

		free = 1
		q.Arrive(now, testFlow(2), Hold{Release: slot}, whole(2))
		q.Arrive(now, testFlow(3), Hold{Release: slot}, whole(3))
		q.Tick(slot + time.Second)
		expect(t, "late", pump(q, slot+time.Second, &free),
			"in 2", "+2", "delivered 2", "reset 3", "-3", "give up 3")
	}
}

func TestTimeIsOver(t *testing.T) {
	for reset, want := range map[bool][]string{
		true:  {"reset 1", "-1", "-2", "give up 1"},
		false: {"-1", "-2", "give up 1"},
	} {
		q, now, free := testQueue(Policy{MaxWait: time.Second, Reset: reset}), queueStart, 0
		q.Arrive(now, testFlow(1), Hold{}, Packet{ID: 1, Seq: 0, Len: 10})
		q.Join(now, testFlow(1), Packet{ID: 2, Seq: 10, Len: 10})
		pump(q, now, &free)
		q.Tick(now + time.Second - 1)
		expect(t, "too early", pump(q, now+time.Second-1, &free))
		q.Tick(now + time.Second)
		expect(t, "time over", pump(q, now+time.Second, &free), want...)
		if q.Waiting(1) != 0 || q.Counts(1).TimedOut != 1 {
			t.Errorf("%d wait, %+v", q.Waiting(1), q.Counts(1))
		}
	}
}

func TestNoPlace(t *testing.T) {
	q, now, free := testQueue(Policy{MaxWaiting: 1, Reset: true}), queueStart, 0
	q.Arrive(now, testFlow(1), Hold{}, whole(1))
	pump(q, now, &free)
	q.Arrive(now, testFlow(2), Hold{}, whole(2))
	expect(t, "no place", pump(q, now, &free), "reset 2", "-2", "give up 2")
	if !q.Join(now, testFlow(1), Packet{ID: 3, Seq: 10, Len: 10}) {
		t.Error("the one who waits is gone")
	}
}

func TestSilentClients(t *testing.T) {
	f := testFlow(1)
	f.SYN = true
	times := func(seconds ...float64) (ds []time.Duration) {
		for _, s := range seconds {
			ds = append(ds, time.Duration(s*1e9))
		}
		return ds
	}
	for name, c := range map[string]struct {
		syns  []time.Duration
		until time.Duration // 0: never
	}{
		"gave up at once":       {times(), 3500 * time.Millisecond},
		"gave up later":         {times(1.01, 3.02), 9540 * time.Millisecond},
		"classic":               {times(1.01, 3.02, 7.05, 15.1), 0},
		"linear, then doubling": {times(1.01, 2.03, 3.04, 4.06, 5.08, 7.2, 11.5, 19), 0},
		"second one lost":       {times(3.02, 7.05, 15.1), 0},
		"from three seconds on": {times(3.02, 9.05), 0},
		"early":                 {times(0.8, 2.6, 6.6, 14.7), 0},
	} {
		t.Run(name, func(t *testing.T) {
			q, free := testQueue(Policy{MaxWait: time.Minute}), 0
			q.Arrive(queueStart, f, Hold{}, whole(0))
			pump(q, queueStart, &free)
			next := 0
			for now := queueStart; now < queueStart+20*time.Second; now += 10 * time.Millisecond {
				if next < len(c.syns) && now >= queueStart+c.syns[next] {
					next++
					if q.Join(now, f, whole(uint32(next))) {
						expect(t, "again", pump(q, now, &free), fmt.Sprint("-", next-1))
					}
				}
				q.Tick(now)
				did := pump(q, now, &free)
				if len(did) == 0 {
					continue
				}
				expect(t, "silent", did, fmt.Sprint("-", next), "give up 1")
				if c.until == 0 || now-queueStart != c.until || q.Counts(1).Silent != 1 {
					t.Errorf("after %v", now-queueStart)
				}
				return
			}
			if c.until != 0 {
				t.Error("not seen")
			}
		})
	}

	t.Run("another attempt", func(t *testing.T) {
		q, free := testQueue(Policy{MaxWait: time.Minute}), 0
		q.Arrive(queueStart, f, Hold{}, Packet{Seq: 1, Len: 1})
		again := queueStart + 1400*time.Millisecond
		q.Join(again, f, Packet{Seq: 2, Len: 1})
		q.Tick(again + 3500*time.Millisecond - 1)
		if pump(q, again, &free); q.Counts(1).Silent != 0 {
			t.Error("too early")
		}
		q.Tick(again + 3500*time.Millisecond)
		if q.Counts(1).Silent != 1 {
			t.Error("measured from the attempt before")
		}
	})
	t.Run("nobody looked", func(t *testing.T) {
		q, free := testQueue(Policy{MaxWait: time.Minute}), 0
		q.Arrive(queueStart, f, Hold{}, whole(1))
		now := queueStart + 10*time.Second
		q.Tick(now)
		expect(t, "what came may be unread", pump(q, now, &free))
		now += synSlack
		q.Tick(now)
		expect(t, "silent", pump(q, now, &free), "-1", "give up 1")
	})
}

func TestAsksAgainWithoutAWakeUp(t *testing.T) {
	q, now, free := testQueue(Policy{}), queueStart, 0
	q.Arrive(now, testFlow(1), Hold{}, whole(1))
	pump(q, now, &free)
	free = 1
	at, ok := q.Due()
	if !ok || at != now+retryAfter {
		t.Fatalf("due at %v", at)
	}
	q.Tick(at)
	expect(t, "asked again", pump(q, at, &free), "in 1", "+1", "delivered 1")
}

func TestSourcesHaveTheirTurn(t *testing.T) {
	q, now, free := testQueue(Policy{Group: func(a netip.Addr) Group {
		return Group{Source: netip.PrefixFrom(a, 24).Masked()}
	}}), queueStart, 0
	for n := range 4 { // four of a greedy network, then one each of two others
		q.Arrive(now, testFlow(n), Hold{}, whole(uint32(n)))
	}
	q.Arrive(now, testFlow(0x100), Hold{}, whole(0x100))
	q.Arrive(now, testFlow(0x200), Hold{}, whole(0x200))
	pump(q, now, &free)
	var order []string
	for range 6 {
		free = 1
		q.Wake(now, 1)
		order = append(order, pump(q, now, &free)[1])
	}
	expect(t, "order", order, "+0", "+256", "+512", "+1", "+2", "+3")
}

// The class whose turn it is may have no slot while another has: that one does
// not wait behind it.
func TestClassesAreAskedOneAfterTheOther(t *testing.T) {
	q, now := testQueue(Policy{Group: func(a netip.Addr) Group {
		return Group{Class: int(a.As4()[2])}
	}}), queueStart
	answer := func(o Outcome) string {
		a, ok := q.Next()
		for ok && a.Act != Claim {
			a, ok = q.Next()
		}
		if !ok {
			return "nobody"
		}
		q.Answer(now, a.Flow, o)
		return fmt.Sprint(a.Flow.Client.Addr().As4()[2], " ", a.Flow.Client.Addr().As4()[3])
	}
	ask := func(want string, o Outcome) {
		t.Helper()
		if got := answer(o); got != want {
			t.Errorf("%s is asked for, want %s", got, want)
		}
	}
	q.Arrive(now, testFlow(0x001), Hold{}, whole(1))
	q.Arrive(now, testFlow(0x002), Hold{}, whole(2))
	ask("0 1", Full)
	ask("nobody", Full)
	q.Arrive(now, testFlow(0x101), Hold{}, whole(3))
	q.Arrive(now, testFlow(0x102), Hold{}, whole(4))
	ask("1 1", Claimed)
	ask("1 2", Full)
	ask("nobody", Full)
	q.Wake(now, 1)
	ask("0 1", Claimed) // the others have had their turn
	ask("1 2", Full)
	ask("0 2", Full)
	ask("nobody", Full)
	at, ok := q.Due()
	if !ok || at != now+retryAfter {
		t.Errorf("asked again at %v, want %v", at, now+retryAfter)
	}
	now = at
	q.Tick(now)
	ask("1 2", Claimed)
	ask("0 2", Claimed)
}

// Who gets the last slot is the last who is asked for, until there may be another.
func TestLastSlot(t *testing.T) {
	q, now := testQueue(Policy{MaxWait: 10 * time.Millisecond, Group: func(a netip.Addr) Group {
		return Group{Class: int(a.As4()[2])}
	}}), queueStart
	answer := func(what string, o Outcome, want ...Act) {
		t.Helper()
		var did []Act
		for a, ok := q.Next(); ok; a, ok = q.Next() {
			did = append(did, a.Act)
			if a.Act == Claim {
				q.Answer(now, a.Flow, o)
			}
		}
		if !slices.Equal(did, want) {
			t.Errorf("%s: %v, want %v", what, did, want)
		}
	}
	for n, f := range []Flow{testFlow(0x001), testFlow(0x002), testFlow(0x101), testFlow(0x201)} {
		q.Arrive(now, f, Hold{}, whole(uint32(n)))
	}
	answer("full", Full, Claim, Claim, Claim)
	q.Wake(now, 1)
	answer("one, of three classes", ClaimedLast, Claim, Accept, Deliver)
	if at, ok := q.Due(); !ok || at != now+10*time.Millisecond {
		t.Errorf("due after %v, want the end of their time", at-now)
	}
	q.Wake(now, 1)
	answer("woken", ClaimedLast, Claim, Accept, Deliver)
	q.Arrive(now, testFlow(0x301), Hold{}, whole(5))
	answer("a class that nobody waited of", Full, Claim)
	now += 10 * time.Millisecond
	q.Tick(now)
	answer("their time is over", Claimed, Drop, GiveUp, Drop, GiveUp, Drop, GiveUp)
}

func TestGone(t *testing.T) {
	q, now := testQueue(Policy{}), queueStart
	q.Arrive(now, testFlow(1), Hold{}, whole(1))
	q.Arrive(now, testFlow(2), Hold{}, whole(2))
	var did []Act
	for a, ok := q.Next(); ok; a, ok = q.Next() {
		did = append(did, a.Act)
		if a.Act == Claim {
			q.Answer(now, a.Flow, Gone)
		}
	}
	if want := []Act{Claim, Drop, Claim, Drop}; !slices.Equal(did, want) {
		t.Errorf("%v", did)
	}
}

func TestClearLetsAllGo(t *testing.T) {
	q, now, free := testQueue(Policy{}), queueStart, 1
	q.Arrive(now, testFlow(1), Hold{}, whole(1))
	pumpMore(q, now, &free, true)
	q.Arrive(now, testFlow(2), Hold{}, whole(2))
	q.Arrive(now, testFlow(3), Hold{Release: now + time.Second}, whole(3))
	pump(q, now, &free)
	q.Clear()
	did := pump(q, now, &free)
	slices.Sort(did)
	expect(t, "all", did, "+2", "+3", "delivered 1", "give up 2", "give up 3")
	if _, ok := q.Due(); ok || q.Waiting(1) != 0 {
		t.Error("not empty")
	}
}

func TestUnknownTargetIsNotHeld(t *testing.T) {
	q, free := NewQueue(), 0
	q.Arrive(queueStart, testFlow(1), Hold{}, whole(1))
	expect(t, "no target", pump(q, queueStart, &free), "+1")
}

func BenchmarkQueue(b *testing.B) {
	const n = 1000
	q := testQueue(Policy{MaxWaiting: 2 * n, MaxWait: time.Hour})
	full := 0
	for i := range n {
		q.Arrive(queueStart, testFlow(i), Hold{}, whole(0))
		pump(q, queueStart, &full)
	}
	b.ReportAllocs()
	now := queueStart
	for i := n; b.Loop(); i++ {
		now += time.Microsecond
		q.Arrive(now, testFlow(i%60000), Hold{}, whole(0))
		q.Wake(now, 1)
		claims := 0
		for a, ok := q.Next(); ok; a, ok = q.Next() {
			if a.Act == Claim {
				claims++
				if claims == 1 {
					q.Answer(now, a.Flow, Claimed)
				} else {
					q.Answer(now, a.Flow, Full)
				}
			}
		}
	}
}
