package agent

import (
	"testing"
	"time"
)

// While there are connections whose end nothing else tells the counts are compared
// each second; but what nobody has counted is asked for each minute, or at once when
// somebody has had his hands in the kernel.
func TestRecountsDue(t *testing.T) {
	const start = 100 * time.Second
	for _, blind := range []bool{false, true} {
		var r recounts
		made, asked := 0, 0
		for now := start; now < start+10*time.Minute; now += time.Second {
			due, ask := r.due(now)
			if ask && !due {
				t.Fatal("asks in no recount")
			}
			if ask {
				asked++
			}
			if due {
				made++
				r.made(now, ask, blind)
			}
		}
		want := 10
		if blind {
			want = 600
		}
		if made != want || asked != 10 || r.total != uint64(made) {
			t.Errorf("blind %v: %d in ten minutes, of which %d asked; want %d and 10", blind, made, asked, want)
		}
		r.next = 0
		if due, ask := r.due(start + 10*time.Minute); !due || !ask {
			t.Errorf("blind %v: nothing is due after a hook was repaired", blind)
		}
	}
}
