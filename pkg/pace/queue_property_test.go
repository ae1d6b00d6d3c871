package pace

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// gateModel is the kernel's side: a limit, who is inside, who waits.
type gateModel struct {
	limit   int
	inside  []Flow
	waiting map[Flow]bool
	verdict map[uint32]Act
	order   []uint64                  // numbers of the arrivals in the order of their claims
	lines   map[netip.Prefix][]uint64 // the same, by source
	numbers map[Flow]uint64
	origin  map[Flow]uint32 // sequence number of the first packet
	lastSeq map[Flow]uint32
	last    func() bool // whether no more packets of a flow are on their way

	// passed are, for each source of which somebody waits, those that had a turn
	// since it last had one.
	passed map[netip.Prefix]map[netip.Prefix]bool
}

func sourceOf(f Flow) netip.Prefix {
	return netip.PrefixFrom(f.Client.Addr(), 31).Masked()
}

// turn notes that a source has its turn, and checks that it does not have its
// second one while another waits for its first.
func (g *gateModel) turn(t *rapid.T, source netip.Prefix) {
	waits := make(map[netip.Prefix]bool)
	for f := range g.waiting {
		waits[sourceOf(f)] = true
	}
	delete(g.passed, source)
	for other := range waits {
		if other == source {
			continue
		}
		if g.passed[other] == nil {
			g.passed[other] = make(map[netip.Prefix]bool)
		}
		if g.passed[other][source] {
			t.Fatalf("%v has two turns while %v waits", source, other)
		}
		g.passed[other][source] = true
	}
	for other := range g.passed {
		if !waits[other] {
			delete(g.passed, other)
		}
	}
}

func (g *gateModel) pump(t *rapid.T, q *Queue, now time.Duration) {
	for a, ok := q.Next(); ok; a, ok = q.Next() {
		switch a.Act {
		case Accept, Drop:
			if _, done := g.verdict[a.Packet.ID]; done {
				t.Fatalf("a second verdict for packet %d", a.Packet.ID)
			}
			g.verdict[a.Packet.ID] = a.Act
			if a.Act == Accept {
				at := func(seq uint32) int32 { return int32(seq - g.origin[a.Flow]) }
				if last, ok := g.lastSeq[a.Flow]; ok && at(a.Packet.Seq) < at(last) {
					t.Fatalf("packet %d goes after one that lies behind it", a.Packet.ID)
				}
				g.lastSeq[a.Flow] = a.Packet.Seq
			}
		case GiveUp:
			delete(g.waiting, a.Flow)
		case Deliver:
			if g.last() {
				q.Delivered(a.Flow)
			}
		case Claim:
			if a.Release > now {
				t.Fatal("claimed before its slot")
			}
			switch {
			case !g.waiting[a.Flow]:
				q.Answer(now, a.Flow, Gone)
			case len(g.inside) >= g.limit:
				q.Answer(now, a.Flow, Full)
			default:
				delete(g.waiting, a.Flow)
				if g.passed != nil {
					g.turn(t, sourceOf(a.Flow))
				}
				g.inside = append(g.inside, a.Flow)
				g.order = append(g.order, g.numbers[a.Flow])
				g.lines[sourceOf(a.Flow)] = append(g.lines[sourceOf(a.Flow)], g.numbers[a.Flow])
				if len(g.inside) >= g.limit && rapid.Bool().Draw(t, "says that it is the last") {
					q.Answer(now, a.Flow, ClaimedLast)
				} else {
					q.Answer(now, a.Flow, Claimed)
				}
			}
		}
	}
}

// checkBytes checks that the bytes of each flow, and of all, are what its packets
// take.
func checkBytes(t *rapid.T, q *Queue) {
	all := 0
	for f, w := range q.flows {
		n := 0
		for _, p := range w.packets {
			n += p.cost()
		}
		if w.granted {
			continue // has left, and its packets have gone
		}
		if n != w.bytes || n == 0 {
			t.Fatalf("%v has packets of %d bytes, and %d are counted", f, n, w.bytes)
		}
		all += n
	}
	if all != q.bytes {
		t.Fatalf("the packets of all have %d bytes, and %d are counted", all, q.bytes)
	}
}

func TestQueueHoldsWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		newestFirst := rapid.Bool().Draw(t, "newest first")
		policy := Policy{
			MaxWaiting:  rapid.IntRange(1, 8).Draw(t, "max waiting"),
			MaxWait:     time.Duration(rapid.IntRange(0, 300).Draw(t, "max wait")) * time.Millisecond,
			NewestFirst: newestFirst,
			Reset:       rapid.Bool().Draw(t, "reset"),
		}
		paced, turns := rapid.Bool().Draw(t, "paced"), rapid.Bool().Draw(t, "turns")
		if turns {
			policy.Group = func(a netip.Addr) Group {
				return Group{Source: sourceOf(Flow{Client: netip.AddrPortFrom(a, 0)})}
			}
		}
		q := NewQueue()
		q.SetPolicy(1, policy)
		g := &gateModel{
			limit:   rapid.IntRange(0, 3).Draw(t, "limit"),
			waiting: make(map[Flow]bool), verdict: make(map[uint32]Act),
			lines:   make(map[netip.Prefix][]uint64),
			numbers: make(map[Flow]uint64), origin: make(map[Flow]uint32), lastSeq: make(map[Flow]uint32),
			last: func() bool { return rapid.Bool().Draw(t, "last") },
		}
		if turns && !paced {
			g.passed = make(map[netip.Prefix]map[netip.Prefix]bool)
		}
		now := queueStart
		var packets uint32
		var arrivals int
		packet := func() Packet {
			packets++
			far := rapid.SampledFrom([]uint32{0, 0, 0, 0, 1 << 30, 1<<31 - 10, 1 << 31, 1<<31 + 5, 3 << 30, 1<<32 - 10}).Draw(t, "far")
			return Packet{
				ID:  packets,
				Seq: far + uint32(rapid.IntRange(0, 4).Draw(t, "seq"))*10,
				Len: uint32(rapid.IntRange(1, 2).Draw(t, "len")) * 10,
			}
		}
		pick := func() (Flow, bool) {
			n := rapid.IntRange(0, max(arrivals-1, 0)).Draw(t, "which")
			return testFlow(n), arrivals > 0
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"arrive", "arrive", "join", "finish", "give up", "time", "due"}).Draw(t, "step") {
			case "arrive":
				f := testFlow(arrivals)
				arrivals++
				g.waiting[f], g.numbers[f] = true, uint64(arrivals)
				var h Hold
				if paced {
					h.Release = now + time.Duration(rapid.IntRange(0, 100).Draw(t, "slot"))*time.Millisecond
				}
				p := packet()
				g.origin[f] = p.Seq
				q.Arrive(now, f, h, p)
			case "join":
				if f, ok := pick(); ok {
					p := packet()
					if !q.Join(now, f, p) {
						delete(g.lastSeq, f) // may be anything
						q.Pass(now, f, p)
						g.pump(t, q, now)
						delete(g.lastSeq, f)
					}
				}
			case "finish":
				if len(g.inside) > 0 {
					g.inside = g.inside[1:]
					q.Wake(now, 1)
				}
			case "give up":
				if f, ok := pick(); ok {
					delete(g.waiting, f)
				}
			case "time":
				now += time.Duration(rapid.IntRange(0, 100_000).Draw(t, "us")) * time.Microsecond
				q.Tick(now)
			case "due":
				if at, ok := q.Due(); ok {
					now = max(now, at)
					q.Tick(now)
				}
			}
			g.pump(t, q, now)

			if at, ok := q.Due(); ok && at <= now {
				// Only a clock that stood still since may be due again.
				q.Tick(now)
				g.pump(t, q, now)
				if at, _ := q.Due(); at <= now {
					t.Fatal("due for ever")
				}
			}
			checkBytes(t, q)
			if q.Waiting(1) > policy.MaxWaiting {
				t.Fatalf("%d wait", q.Waiting(1))
			}
			if len(g.inside) < g.limit && !paced && q.Waiting(1) > 0 {
				t.Fatal("a free slot, and somebody waits for it")
			}
		}
		if !paced && !newestFirst && !turns && !slices.IsSorted(g.order) {
			t.Fatalf("somebody was overtaken: %v", g.order)
		}
		for source, line := range g.lines {
			if !paced && !newestFirst && !slices.IsSorted(line) {
				t.Fatalf("somebody of %v was overtaken: %v", source, line)
			}
		}
		c := q.Counts(1)
		if c.Held != c.Released+c.TimedOut+c.Gone+c.Silent+uint64(q.Waiting(1)) {
			t.Fatalf("%+v do not add up with %d waiting", c, q.Waiting(1))
		}
		q.Clear()
		g.pump(t, q, now)
		for id := uint32(1); id <= packets; id++ {
			if _, ok := g.verdict[id]; !ok {
				t.Fatalf("no verdict for packet %d", id)
			}
		}
		if q.bytes != 0 {
			t.Fatalf("%d bytes are left in an empty queue", q.bytes)
		}
		if len(g.waiting) > 0 {
			t.Fatalf("%d flows wait in the gate and not in the queue", len(g.waiting))
		}
	})
}
