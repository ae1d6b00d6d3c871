package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func testWire(t *testing.T, hook func(*Frame)) *Wire {
	t.Helper()
	l := ForTest(t, "mid", "srv", "cli")
	w, err := l.NewWire(l.Host("srv"), l.Host("cli"), hook)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// transfer sends data from B to A over a new connection, and returns what A
// received and how long it took.
func transfer(t *testing.T, w *Wire, to netip.Addr, data []byte) ([]byte, time.Duration) {
	t.Helper()
	ln, err := w.A.Host.Listen("tcp", netip.AddrPortFrom(to, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	begin := time.Now()
	sent := make(chan error, 1)
	go func() {
		conn, err := w.B.Host.Dial(t.Context(), "tcp", ln.Addr().String())
		if err == nil {
			_, err = conn.Write(data)
			err = errors.Join(err, conn.Close())
		}
		if err != nil {
			ln.Close()
		}
		sent <- err
	}()
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(errors.Join(err, <-sent))
	}
	defer conn.Close()
	got, err := io.ReadAll(conn)
	if err := errors.Join(err, <-sent); err != nil {
		t.Fatal(err)
	}
	return got, time.Since(begin)
}

// A stream arrives whole through a wire that harms every kind of frame.
func TestWireCarriesStreams(t *testing.T) {
	data := make([]byte, 4<<20)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(data)
	want := sha256.Sum256(data)

	hooks := map[string]func(*Frame){
		"untouched": nil,
		"padded": func(f *Frame) {
			f.Data = append(f.Data, bytes.Repeat([]byte{0xa5}, max(0, 60-len(f.Data)))...)
		},
		"bad": func() func(*Frame) {
			var mu sync.Mutex
			r := rand.New(rand.NewPCG(1, 2))
			return func(f *Frame) {
				mu.Lock()
				defer mu.Unlock()
				switch r.IntN(200) {
				case 0:
					f.Drop()
				case 1:
					f.Duplicate(time.Millisecond)
				case 2, 3:
					f.Delay(time.Duration(r.IntN(2000)) * time.Microsecond)
				}
			}
		}(),
	}
	for name, hook := range hooks {
		t.Run(name, func(t *testing.T) {
			w := testWire(t, hook)
			for _, to := range []netip.Addr{w.A.Addr4, w.A.Addr6} {
				got, took := transfer(t, w, to, data)
				if sha256.Sum256(got) != want {
					t.Errorf("%v: %d bytes sent, %d other ones received", to, len(data), len(got))
				}
				t.Logf("%v: %d bytes in %v", to, len(data), took)
			}
		})
	}
}

// The hook sees each segment as it would be on a cable.
func TestWireShowsSegments(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	var largest int
	w := testWire(t, func(f *Frame) {
		mu.Lock()
		defer mu.Unlock()
		largest = max(largest, len(f.Data))
		if s, ok := f.Segment(); ok && s.Flags&SYN != 0 {
			seen = append(seen, fmt.Sprintf("%s: %v to %v flags %#x", f.From.Name, s.Src.Addr(), s.Dst.Addr(), s.Flags))
		}
	})
	transfer(t, w, w.A.Addr4, make([]byte, 1<<20))
	transfer(t, w, w.A.Addr6, make([]byte, 1<<20))
	want := []string{
		"cli: 10.84.0.2 to 10.84.0.1 flags 0x2", "srv: 10.84.0.1 to 10.84.0.2 flags 0x12",
		"cli: fd84::2 to fd84::1 flags 0x2", "srv: fd84::1 to fd84::2 flags 0x12",
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(seen, want) {
		t.Errorf("handshakes seen:\n%q\nwant\n%q", seen, want)
	}
	if largest > 1514 {
		t.Errorf("a frame of %d bytes: segments were not cut", largest)
	}
}

func TestWireDelaysInOrder(t *testing.T) {
	const delay = 20 * time.Millisecond
	w := testWire(t, func(f *Frame) {
		if s, ok := f.Segment(); ok && f.From.Name == "srv" && s.Flags&SYN != 0 {
			f.Delay(delay)
		}
	})
	_, took := transfer(t, w, w.A.Addr4, []byte("x"))
	if took < delay || took > delay+500*time.Millisecond {
		t.Errorf("a handshake with a SYN-ACK %v late took %v", delay, took)
	}

	ln := &line{wake: make(chan struct{}, 1)}
	now := time.Now()
	for _, ms := range []int{5, 3, 5, 9, 3} {
		ln.later(delivery{at: now.Add(time.Duration(ms) * time.Millisecond), data: []byte{byte(ms), byte(len(ln.late))}})
	}
	var order [][]byte
	for _, d := range ln.late {
		order = append(order, d.data)
	}
	if want := [][]byte{{3, 1}, {3, 4}, {5, 0}, {5, 2}, {9, 3}}; !slices.EqualFunc(order, want, bytes.Equal) {
		t.Errorf("deliveries in the order %v, want %v", order, want)
	}
}

func TestWireDrops(t *testing.T) {
	var drop atomic.Bool
	var syns atomic.Int32
	w := testWire(t, func(f *Frame) {
		s, ok := f.Segment()
		if !ok || f.From.Name != "cli" || !s.Has(SYN, SYN|ACK) {
			return
		}
		syns.Add(1)
		if drop.Load() {
			f.Drop()
		}
	})
	drop.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	conn, err := w.B.Host.Dial(ctx, "tcp", netip.AddrPortFrom(w.A.Addr4, 9).String())
	if err == nil {
		conn.Close()
	}
	var ne net.Error
	if !errors.As(err, &ne) || !ne.Timeout() || syns.Load() != 1 {
		t.Errorf("a connect whose SYN is lost ended with %v after %d SYNs", err, syns.Load())
	}
	drop.Store(false)
	if _, err := w.B.Host.Dial(t.Context(), "tcp", netip.AddrPortFrom(w.A.Addr4, 9).String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a connect to a closed port ended with %v", err)
	}
}

// A closed port answers a SYN of a raw socket, with the right addresses and
// numbers, and once more when the wire doubles it.
func TestSendSegment(t *testing.T) {
	answers := make(chan Segment, 10)
	w := testWire(t, func(f *Frame) {
		s, ok := f.Segment()
		switch {
		case ok && f.From.Name == "srv":
			answers <- s
		case ok:
			f.Duplicate(time.Millisecond)
		}
	})
	for _, addr := range [][2]netip.Addr{{w.B.Addr4, w.A.Addr4}, {w.B.Addr6, w.A.Addr6}} {
		syn := Segment{
			Src: netip.AddrPortFrom(addr[0], 4711), Dst: netip.AddrPortFrom(addr[1], 9),
			Seq: 1000, Flags: SYN, Payload: []byte("odd"),
		}
		if err := w.B.Host.SendSegment(syn); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			var s Segment
			select {
			case s = <-answers:
			case <-time.After(2 * time.Second):
				t.Fatalf("too few answers to %+v", syn)
			}
			if s.Src != syn.Dst || s.Dst != syn.Src || !s.Has(RST|ACK, RST|ACK|SYN) || s.Ack != 1004 {
				t.Errorf("answer %+v to %+v", s, syn)
			}
		}
	}
}

func FuzzParseSegment(f *testing.F) {
	s := Segment{Src: netip.MustParseAddrPort("10.0.0.1:1"), Dst: netip.MustParseAddrPort("10.0.0.2:2"), Flags: SYN}
	packet, _ := s.packet()
	packet[3] = byte(len(packet)) // left to the kernel by packet
	f.Add(append([]byte{12: 8, 13: 0}, packet...))
	s.Src, s.Dst = netip.MustParseAddrPort("[fd00::1]:1"), netip.MustParseAddrPort("[fd00::2]:2")
	packet, _ = s.packet()
	f.Add(append([]byte{12: 0x86, 13: 0xdd}, packet...))
	f.Fuzz(func(t *testing.T, frame []byte) {
		s, ok := parseSegment(frame)
		if ok && len(s.Payload) > len(frame)-macHeaderLen-ip4HeaderLen-tcpHeaderLen {
			t.Errorf("a payload of %d bytes in a frame of %d", len(s.Payload), len(frame))
		}
	})
}
