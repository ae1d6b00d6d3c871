package agent

import (
	"net/netip"
	"testing"
	"time"

	"headgate/pkg/loader"
)

// However often a connection is told of, it is looked at once; when that has
// been done, it may be told of anew.
func TestEnderLooksAtEachConnectionOnce(t *testing.T) {
	e := &ender{
		idle:  map[uint32]time.Duration{7: 10},
		news:  make(chan struct{}, 1),
		known: make(map[flow]bool),
	}
	wake := func(client string, at time.Duration) loader.Wake {
		return loader.Wake{Target: 7, At: at, Client: netip.MustParseAddrPort(client), Server: netip.MustParseAddrPort("10.0.0.1:80")}
	}
	for i := range 100_000 {
		e.add(wake("10.0.0.2:1000", time.Duration(100+i)))
	}
	e.add(wake("10.0.0.2:1001", 50))
	if len(e.all) != 2 {
		t.Fatalf("%d are to be looked at, want 2", len(e.all))
	}
	if _, ok, next := e.pop(59); ok || next != 60 {
		t.Errorf("next: %v, %v; want one at 60", ok, next)
	}
	for _, want := range []uint16{1001, 1000} {
		if r, ok, _ := e.pop(110); !ok || r.Client.Port() != want {
			t.Errorf("looked at %v, %v; want port %d", r.Client, ok, want)
		}
	}
	if len(e.all)+len(e.known) != 0 {
		t.Errorf("left: %v, %v", e.all, e.known)
	}
	e.add(wake("10.0.0.2:1000", 200))
	if len(e.all) != 1 {
		t.Error("it cannot be told of again")
	}
}
