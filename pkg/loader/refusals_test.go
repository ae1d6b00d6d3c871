package loader

import "testing"

// Refusals that nobody reads fill the room that there is for them. What does not
// fit in is counted, nobody is let in or kept out for it, and who reads again is
// told what comes then.
func TestRefusalsThatNobodyReads(t *testing.T) {
	const ticks, each = 400, 4
	d := newDoorman(t)
	refuse := func(ticks int) {
		t.Helper()
		for range ticks {
			d.order(enforce(0))
			d.must(false, "192.0.2.1", 1, 2, 3, 4)
		}
	}
	refusals, err := d.gate.NewRefusals()
	if err != nil {
		t.Fatal(err)
	}
	defer refusals.Close()
	told := func() (n int) {
		t.Helper()
		err := refusals.Each(func(r Refusal) {
			if n++; r.Target != d.id || r.Reason != ReasonLimit {
				t.Errorf("%+v", r)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	refuse(ticks)
	lost := int(d.reading().EventsLost)
	if n := told(); n == 0 || lost == 0 || n+lost != each*ticks || d.reading().Rejected != each*ticks {
		t.Errorf("told of %d, %d lost, want %d in all: %+v", n, lost, each*ticks, d.reading())
	}
	refuse(1)
	if n := told(); n != each || int(d.reading().EventsLost) != lost {
		t.Errorf("told of %d, want %d; %d lost, before %d", n, each, d.reading().EventsLost, lost)
	}
}
