package loader

import (
	"strings"
	"testing"
	"time"
)

// Types of TLS records, and of handshake messages in the clear; RFC 8446.
const (
	changeCipherSpec = 20
	alert            = 21
	handshake        = 22
	applicationData  = 23

	clientHello       = 1
	serverHello       = 2
	clientKeyExchange = 16
)

// record is a TLS record of that many bytes, whose first is given.
func record(kind, first byte, length int) string {
	return string([]byte{kind, 3, 3, byte(length >> 8), byte(length), first}) + strings.Repeat("x", length-1)
}

// What the records of TLS 1.3 hold beside their content: its type and a tag.
const sealed = 1 + 16

var (
	finished256 = record(changeCipherSpec, 1, 1) + record(applicationData, 0, 4+32+sealed)
	finished384 = record(changeCipherSpec, 1, 1) + record(applicationData, 0, 4+48+sealed)
	request     = record(applicationData, 0, 100)
	response    = record(applicationData, 0, 300)
	ticket      = record(applicationData, 0, 250)
	closes      = record(applicationData, 0, 2+sealed)
)

// talk is one connection between a client and a server.
type talk struct {
	wire
	conn headgateConn
}

func newTalk(t *testing.T) *talk {
	return &talk{wire: newWire(t), conn: headgateConn{Counted: 1, InEnd: 1, OutEnd: 1}}
}

func (k *talk) client(flight string) {
	k.Helper()
	k.conn = k.receive(k.conn, segment(k.conn.InEnd, flight))
}

func (k *talk) server(flight string) {
	k.Helper()
	k.conn = k.send(k.conn, segment(k.conn.OutEnd, flight))
}

func (k *talk) want(when string, samples uint64, open bool) {
	k.Helper()
	if n, _ := k.samples(); n != samples || (k.conn.Asked != 0) != open {
		k.Errorf("%s: %d samples, want %d; request open %v, want %v", when, n, samples, k.conn.Asked != 0, open)
	}
}

// tls13 is the handshake of TLS 1.3 up to the server's first flight.
func (k *talk) tls13() {
	k.Helper()
	k.client(record(handshake, clientHello, 500))
	k.want("hello", 0, false)
	k.server(record(handshake, serverHello, 100) + record(changeCipherSpec, 1, 1) + record(applicationData, 0, 1000))
	k.want("the server's hello", 0, false)
}

func TestTLSHandshakeIsNoRequest(t *testing.T) {
	t.Run("TLS 1.3", func(t *testing.T) {
		for _, finished := range []string{finished256, finished384} {
			k := newTalk(t)
			k.tls13()
			k.client(finished)
			k.want("the client has finished", 0, false)
			k.server(ticket + ticket)
			k.want("tickets", 0, false)
			k.client(request)
			k.want("a request", 0, true)
		}
	})
	t.Run("TLS 1.3, second hello", func(t *testing.T) {
		k := newTalk(t)
		k.client(record(handshake, clientHello, 500))
		k.server(record(handshake, serverHello, 80))
		k.client(record(changeCipherSpec, 1, 1) + record(handshake, clientHello, 500))
		k.want("the second hello", 0, false)
		k.server(record(handshake, serverHello, 100) + record(applicationData, 0, 1000))
		k.client(finished256)
		k.want("the client has finished", 0, false)
		k.client(request)
		k.want("a request", 0, true)
	})
	t.Run("TLS 1.3, a request rides on it", func(t *testing.T) {
		k := newTalk(t)
		k.tls13()
		k.client(finished256 + request)
		k.want("finished, and a request", 0, true)
	})
	t.Run("TLS 1.2", func(t *testing.T) {
		k := newTalk(t)
		k.client(record(handshake, clientHello, 300))
		k.server(record(handshake, serverHello, 1200))
		k.client(record(handshake, clientKeyExchange, 70) + record(changeCipherSpec, 1, 1) + record(handshake, 0, 40))
		k.want("the client has finished", 0, false)
		k.server(record(changeCipherSpec, 1, 1) + record(handshake, 0, 40))
		k.want("the server has finished", 0, false)
		k.client(request)
		k.want("a request", 0, true)
		time.Sleep(5 * time.Millisecond)
		k.server(response)
		k.want("a response", 1, false)
		if _, sum := k.samples(); sum < 5*time.Millisecond {
			t.Errorf("it took %v", sum)
		}
	})
	t.Run("TLS 1.2, a request before the server has finished", func(t *testing.T) {
		k := newTalk(t)
		k.client(record(handshake, clientHello, 300))
		k.server(record(handshake, serverHello, 1200))
		k.client(record(handshake, clientKeyExchange, 70) + record(changeCipherSpec, 1, 1) + record(handshake, 0, 40))
		k.client(request)
		k.server(record(changeCipherSpec, 1, 1) + record(handshake, 0, 40))
		k.want("the server has finished", 0, true)
		k.server(response)
		k.want("a response", 1, false)
	})
	t.Run("no TLS, though it begins alike", func(t *testing.T) {
		k := newTalk(t)
		k.client("\x16\x04 anything")
		k.want("a request", 0, true)
	})
}

// The session tickets of TLS 1.3 look like a response to the first request.
func TestTLSTicketsAreNoResponse(t *testing.T) {
	t.Run("tickets, then a response", func(t *testing.T) {
		k := newTalk(t)
		k.tls13()
		k.client(finished256 + request)
		k.server(ticket)
		k.want("a ticket", 0, true)
		time.Sleep(5 * time.Millisecond)
		k.server(response)
		k.want("the response", 1, false)
		if _, sum := k.samples(); sum < 5*time.Millisecond {
			t.Errorf("it took %v", sum)
		}
		k.client(request)
		k.server(response)
		k.want("the next response", 2, false)
	})
	t.Run("no tickets", func(t *testing.T) {
		k := newTalk(t)
		k.tls13()
		k.client(finished256)
		begun := monotonic(t)
		k.client(request)
		time.Sleep(5 * time.Millisecond)
		k.server(response)
		atMost := monotonic(t) - begun
		time.Sleep(5 * time.Millisecond)
		k.client(request)
		k.want("the response is known by the next request", 1, true)
		if _, sum := k.samples(); sum < 5*time.Millisecond || sum > atMost {
			t.Errorf("it took %v, want 5 ms to %v", sum, atMost)
		}
		k.server(response)
		k.want("the next response", 2, false)
	})
	t.Run("the server closes", func(t *testing.T) {
		k := newTalk(t)
		k.tls13()
		k.client(finished256)
		k.client(request)
		k.server(response)
		k.server(closes)
		k.want("the response is known by the end", 1, false)
	})
}

func TestTLSEndIsNoRequest(t *testing.T) {
	for name, end := range map[string]string{"TLS 1.3": closes, "in the clear": record(alert, 1, 2)} {
		k := newTalk(t)
		k.tls13()
		k.client(finished256)
		k.client(request)
		k.server(ticket)
		time.Sleep(2 * time.Millisecond)
		k.server(response)
		k.want(name+", before", 1, false)
		k.client(end)
		k.want(name+", the client closes", 1, false)
	}
}

// A client's first words may come with its handshake, unseen: the first output
// tells what they were.
func TestUnseenRequest(t *testing.T) {
	const spoke, tls, handshake, unsaid = 1, 2, 4, 32 // of bpf/types.h
	unseen := headgateConn{Counted: 1, Asked: 1, Cohort: 7, Flags: spoke | unsaid}
	for name, tt := range map[string]struct {
		first   string // output
		samples uint64
		flags   uint32
	}{
		"a response":       {"HTTP/1.1 200 OK", 1, spoke},
		"of one byte":      {"\x16", 1, spoke},
		"a server's hello": {"\x16\x03\x03\x00\x7a\x02", 0, spoke | tls | handshake},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWire(t)
			w.put(unitsMapConfs, headgateTargetConf{Signal: headgateSignalSIGNAL_SERVICE, CohortEpoch: 7, CohortSize: 2})
			c := w.send(unseen, segment(0, tt.first))
			n, _ := w.samples()
			var cohort headgateCohort
			w.get(unitsMapCohorts, &cohort)
			if n != tt.samples || cohort.Done != tt.samples || c.Asked != 0 || c.Flags != tt.flags {
				t.Errorf("%d samples, %d in the cohort, want %d; %+v", n, cohort.Done, tt.samples, c)
			}
		})
	}
}
