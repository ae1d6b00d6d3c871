package events

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func clock() time.Time { return time.Unix(1_000_000, 0).UTC() }

func numbers(r *Reader) (all []uint64, missed uint64) {
	for e, ok := r.Poll(); ok; e, ok = r.Poll() {
		if e.Type == Missed {
			missed += e.LeftOut
			continue
		}
		all = append(all, e.Number)
	}
	return all, missed
}

func TestReadersReadAtTheirOwnSpeed(t *testing.T) {
	b := NewBus(4, clock)
	early := b.Follow()
	for range 3 {
		b.Publish(Event{Type: Reload})
	}
	late := b.After(1)
	if got, missed := numbers(late); missed != 0 || !cmp.Equal(got, []uint64{2, 3}) {
		t.Errorf("after 1: %v, %d missed", got, missed)
	}
	for range 3 {
		b.Publish(Event{Type: Reload})
	}
	if got, missed := numbers(early); missed != 2 || !cmp.Equal(got, []uint64{3, 4, 5, 6}) {
		t.Errorf("one that is too slow: %v, %d missed", got, missed)
	}
	if got, missed := numbers(late); missed != 0 || !cmp.Equal(got, []uint64{4, 5, 6}) {
		t.Errorf("one that is not: %v, %d missed", got, missed)
	}
	for name, r := range map[string]*Reader{"everything": b.After(0), "a number of another agent": b.After(100)} {
		if got, missed := numbers(r); missed != 0 || !cmp.Equal(got, []uint64{3, 4, 5, 6}) {
			t.Errorf("%s: %v, %d missed", name, got, missed)
		}
	}
	want := Stats{Published: map[Type]uint64{Reload: 6, Missed: 1}, Missed: 2}
	if d := cmp.Diff(want, b.Stats()); d != "" {
		t.Error(d)
	}
}

// Whatever is published and read in whatever order, a reader gets each event
// once and in order, or is told how many it has missed.
func TestNothingIsLostInSilence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NewBus(rapid.IntRange(1, 8).Draw(t, "kept"), clock)
		r, next := b.Follow(), uint64(1)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			for range rapid.IntRange(0, 12).Draw(t, "published") {
				b.Publish(Event{Type: Rejection})
			}
			for range rapid.IntRange(0, 12).Draw(t, "read") {
				e, ok := r.Poll()
				switch {
				case !ok:
					if next != b.last+1 {
						t.Fatalf("no event, the next is %d of %d", next, b.last)
					}
				case e.Type == Missed:
					next += e.LeftOut
				default:
					if e.Number != next {
						t.Fatalf("event %d, want %d", e.Number, next)
					}
					next++
				}
			}
		}
	})
}

func TestNextWaits(t *testing.T) {
	b := NewBus(16, clock)
	var readers sync.WaitGroup
	for range 3 {
		r := b.Follow()
		readers.Go(func() {
			for want := uint64(1); want <= 10; want++ {
				if e, err := r.Next(t.Context()); err != nil || e.Number != want {
					t.Errorf("event %d, %v, want %d", e.Number, err, want)
				}
			}
			if _, err := r.Next(t.Context()); !errors.Is(err, ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		})
	}
	for i := range 10 {
		b.Publish(Event{Type: Operator, Message: fmt.Sprint(i)})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := b.Follow().Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing happens: %v", err)
	}
	b.Close()
	b.Publish(Event{Type: Reload})
	readers.Wait()
	(*Bus)(nil).Publish(Event{})
}
