package pace

import (
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestFirstPassesAtOnceAndIdleTimeEarnsNothing(t *testing.T) {
	const interval, long = 100, math.MaxUint64
	slot, ok := NextSlot(0, 7, interval, 0, 0)
	if slot != 7 || !ok {
		t.Fatalf("first: %d, %t", slot, ok)
	}
	slot, ok = NextSlot(slot, 1_000_000, interval, 0, 0)
	if slot != 1_000_000 || !ok {
		t.Fatalf("after idling: %d, %t", slot, ok)
	}
	if slot, ok = NextSlot(slot, 1_000_000, interval, 0, long); slot != 1_000_100 || !ok {
		t.Fatalf("right after that: %d, %t", slot, ok)
	}
}

func TestWaitOfExactlyMaxWaitPasses(t *testing.T) {
	if slot, ok := NextSlot(1000, 1050, 100, 0, 50); slot != 1100 || !ok {
		t.Errorf("%d, %t", slot, ok)
	}
	if _, ok := NextSlot(1000, 1049, 100, 0, 50); ok {
		t.Error("1 ns more passed")
	}
}

func TestRefusedDoesNotMoveTheSchedule(t *testing.T) {
	var s Slots
	s.Take(1000, 100, 0, 0)
	for range 10 {
		if _, ok := s.Take(1001, 100, 0, 50); ok {
			t.Fatal("passed")
		}
	}
	if slot, ok := s.Take(1060, 100, 0, 50); slot != 1100 || !ok {
		t.Errorf("%d, %t", slot, ok)
	}
}

// As many pass at once as there are intervals of credit, and one; then one each
// interval, however long it takes until as many may again.
func TestIdleTimeEarnsABurst(t *testing.T) {
	const interval, burst = 100, 10
	atOnce := func(s *Slots, now uint64) (n int) {
		for {
			if _, ok := s.Take(now, interval, (burst-1)*interval, 0); !ok {
				return n
			}
			n++
		}
	}
	var s Slots
	for _, c := range []struct {
		now  uint64
		want int
	}{{10_000, burst}, {10_099, 0}, {10_100, 1}, {10_399, 2}, {10_400, 1}, {11_400, burst}, {1_000_000, burst}} {
		if n := atOnce(&s, c.now); n != c.want {
			t.Errorf("%d passed at %d, want %d", n, c.now, c.want)
		}
	}
}

func TestNewIntervalHoldsAtOnce(t *testing.T) {
	var s Slots
	s.Take(1000, Interval(MinRate), 0, 0)
	if slot, ok := s.Take(2_001_000, Interval(1000), 0, 0); slot != 2_001_000 || !ok {
		t.Errorf("waits for the interval of the old rate: %d, %t", slot, ok)
	}
}

func TestIntervalIsExact(t *testing.T) {
	for rate := MinRate; rate <= MaxRate; rate *= 1.037 {
		var s Slots
		const n = 1000
		var last uint64
		for range n + 1 {
			last, _ = s.Take(1, Interval(rate), 0, math.MaxUint64)
		}
		if got := n / (float64(last-1) / 1e9); math.Abs(got-rate) > 0.0006*rate {
			t.Errorf("%v/s: %v/s", rate, got)
		}
	}
	for rate, want := range map[float64]uint64{
		0: 1e12, -1: 1e12, math.NaN(): 1e12, math.Inf(-1): 1e12, 1e-300: 1e12,
		MaxRate: 1000, 1e300: 1000, math.Inf(1): 1000, 3: 333_333_333,
	} {
		if got := Interval(rate); got != want {
			t.Errorf("Interval(%v) = %d, want %d", rate, got, want)
		}
	}
}

func TestAutoRateIsLittlesLaw(t *testing.T) {
	for _, c := range []struct {
		limit    int
		mean     time.Duration
		headroom float64
		want     float64
	}{
		{20, 100 * time.Millisecond, 1, 200},
		{20, 100 * time.Millisecond, 1.2, 240},
		{0, time.Second, 1, MinRate},
		{1 << 30, time.Nanosecond, 1, MaxRate},
		{20, 0, 1, MaxRate},
		{20, time.Second, math.NaN(), MinRate},
	} {
		if got := AutoRate(c.limit, c.mean, c.headroom); math.Abs(got-c.want) > 1e-9*c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// The integer schedule against one in floating point seconds that does not
// round: they may be apart by half a nanosecond an admission.
func TestSlotsFollowAFloatModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := math.Exp(rapid.Float64Range(math.Log(MinRate), math.Log(MaxRate)).Draw(t, "log rate"))
		interval := Interval(rate)
		maxWait := uint64(rapid.Float64Range(0, 20).Draw(t, "intervals of wait") * float64(interval))
		credit := uint64(rapid.Float64Range(0, 20).Draw(t, "intervals of credit") * float64(interval))

		now := credit + uint64(rapid.Int64Range(1, 1e9).Draw(t, "start"))
		start := now
		var last uint64
		model, begun := 0.0, false // seconds since start
		apart := 2e-9
		for range rapid.IntRange(1, 200).Draw(t, "arrivals") {
			gap := rapid.Float64Range(0, 3).Draw(t, "gap in intervals")
			now += uint64(gap * float64(interval))
			at := float64(now-start) / 1e9

			slot, ok := NextSlot(last, now, interval, credit, maxWait)

			want := at - float64(credit)/1e9
			if begun {
				want = max(want, model+1/rate)
			}
			wait := max(want-at, 0)
			apart += 1e-9 + 1e-15*want
			if slack := wait - float64(maxWait)/1e9; math.Abs(slack) > apart && ok != (slack < 0) {
				t.Fatalf("%v/s: passed %t, the model waits %v s of %d ns", rate, ok, wait, maxWait)
			}
			if !ok {
				continue
			}
			if d := float64(int64(slot-start))/1e9 - want; math.Abs(d) > apart {
				t.Fatalf("%v/s: slot is %v s from the model's", rate, d)
			}
			last, model, begun = slot, want, true
		}
	})
}

// Every input is defined: what passes is never early, never before its
// predecessor plus the interval, and never waits too long.
func TestNextSlotHoldsForAllIntegers(t *testing.T) {
	word := rapid.Custom(func(t *rapid.T) uint64 {
		return rapid.OneOf(
			rapid.Uint64(),
			rapid.SampledFrom([]uint64{0, 1, 2, math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64 - 1, math.MaxUint64}),
		).Draw(t, "word")
	})
	rapid.Check(t, func(t *rapid.T) {
		last, now, interval, maxWait := word.Draw(t, "last"), max(word.Draw(t, "now"), 1), word.Draw(t, "interval"), word.Draw(t, "max wait")
		credit := word.Draw(t, "credit")
		slot, ok := NextSlot(last, now, interval, credit, maxWait)
		if !ok {
			// Refused for a reason: the wait would be too long, or endless.
			if last == 0 || last+interval >= last && (last+interval <= now || last+interval-now <= maxWait) {
				t.Fatal("refused without a reason")
			}
			return
		}
		if slot == 0 || slot < now && now-slot > credit || slot > now && slot-now > maxWait {
			t.Fatalf("slot %d", slot)
		}
		if last != 0 && (slot < last || slot-last < interval) {
			t.Fatalf("slot %d is too close to the one before", slot)
		}
	})
}

func TestSlotsOfManyCallersAreApart(t *testing.T) {
	const callers, each, interval = 8, 2000, 1000
	var s Slots
	var wg sync.WaitGroup
	got := make([][]uint64, callers)
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				slot, ok := s.Take(uint64(1+i), interval, 0, math.MaxUint64)
				if !ok {
					t.Error("refused")
				}
				got[c] = append(got[c], slot)
			}
		})
	}
	wg.Wait()
	all := slices.Concat(got...)
	slices.Sort(all)
	for i := 1; i < len(all); i++ {
		if all[i]-all[i-1] < interval {
			t.Fatalf("slots %d and %d are too close", all[i-1], all[i])
		}
	}
	if len(all) != callers*each {
		t.Errorf("%d slots", len(all))
	}
}

func BenchmarkSlotsTake(b *testing.B) {
	var s Slots
	b.ReportAllocs()
	for now := uint64(1); b.Loop(); now++ {
		s.Take(now, 1000, 0, 5000)
	}
}
