package loader

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"headgate/internal/lab"
)

// What nobody else ends is settled, whatever party its request is of; what goes on
// stays.
func TestSettle(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	ln, err := srv.Listen("tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := cli.Dial(t.Context(), "tcp", fmt.Sprintf("%s:8080", srv.Addr4))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	raw, err := accepted.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}

	g := openForTest(t)
	ns := netnsOf(t, srv)
	o := enforce(10)
	o.Requests, o.Idle, o.MaxWait = true, 5*time.Second, time.Millisecond
	id, err := g.Target(TargetKey{Netns: ns.Cookie(), Port: 8080}, o, monotonic(t)+time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	now := uint64(monotonic(t))
	const old = 1 // when the machine began, which may be a minute ago
	const (
		held, busy       = 1 << 4, 3 << 4 // of enum request_state
		begun, announced = 1, 2           // of enum answering
	)
	for name, tt := range map[string]struct {
		is        headgateConn
		units     uint64
		ends      bool
		answering uint32
	}{
		"held in vain":                 {headgateConn{Request: held, Arrived: old}, 1 << 32, true, 0},
		"held":                         {headgateConn{Request: held, Arrived: now}, 1 << 32, false, 0},
		"it was the response":          {headgateConn{Request: busy, First: 1, Asked: old}, 1, true, 0},
		"it may have been":             {headgateConn{Request: busy, First: 1, Asked: now}, 1, false, 0},
		"its response is over":         {headgateConn{Request: busy, Answering: begun, Output: old}, 1, true, 0},
		"its response is to be told":   {headgateConn{Request: busy, Answering: begun, Output: now}, 1, false, begun},
		"the agent that was told died": {headgateConn{Request: busy, Answering: announced, Output: now}, 1, false, begun},
		"the application has it":       {headgateConn{Request: busy, Asked: old}, 1, false, 0},
	} {
		for number, of := range map[string]uint64{"": 0, " of a class": 3, " of a source": 1 << 40, " with a number": 5 << 6} {
			t.Run(name+number, func(t *testing.T) {
				is := tt.is
				is.Target, is.Counted, is.PerRequest, is.Opened = id, 1, 1, 1
				is.Request |= of
				var put error
				err := raw.Control(func(fd uintptr) { put = g.maps[headgateMapConns].Put(uint32(fd), is) })
				if err := errors.Join(err, put); err != nil {
					t.Fatal(err)
				}
				g.states.elements[id].Units = tt.units
				if err := g.Settle(); err != nil {
					t.Fatal(err)
				}
				var after headgateConn
				err = raw.Control(func(fd uintptr) { put = g.maps[headgateMapConns].Lookup(uint32(fd), &after) })
				if err := errors.Join(err, put); err != nil {
					t.Fatal(err)
				}
				units, request := tt.units, is.Request
				if tt.ends {
					units, request = 0, 0
				} else if after.Answering != tt.answering {
					t.Errorf("answering %d, want %d", after.Answering, tt.answering)
				}
				if n := g.states.elements[id].Units; n != units || after.Request != request {
					t.Errorf("units %#x, want %#x; request %#x, want %#x", n, units, after.Request, request)
				}
			})
		}
	}
	g.states.elements[id].Units = 0
}
