package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// Wakes tells at once of what the agent has to act on.
//
// It waits by the runtime's poller, and not in a system call of its own, as the
// reader of a ring buffer would. While a goroutine enters one that lasts, the
// runtime of Go 1.26 may fail to take its processor away: who stops the world at
// that moment, a garbage collection or [syscall.AllThreadsSyscall], waits until the
// next timer, or for a minute where there is none, and with it the whole agent.
type Wakes struct {
	r     *ringbuf.Reader // never waits
	ready *os.File        // of the ring buffer's map: becomes readable
	conn  syscall.RawConn // of ready
}

// WakeKind is what a [Wake] tells of.
type WakeKind uint32

// The kinds, in the order of the kernel's.
const (
	WakeSlot WakeKind = iota // a slot came free on a target where units wait
	WakeIdle                 // a request's response has begun; it ends when that is idle
	WakeTrim                 // a connection came over the limit, and has to be ended
)

// Wake is what the agent has to act on. All but Target, Kind and At is of a
// connection, and not there in those of WakeSlot.
type Wake struct {
	Kind           WakeKind
	Target         uint32
	At             time.Duration // CLOCK_MONOTONIC
	Client, Server netip.AddrPort
	Device         uint32 // what its socket is bound to; 0: nothing
	Cookie         uint64 // of its socket; with WakeTrim
}

// NewWakes begins to listen. There is one listener at a time.
func (g *Gate) NewWakes() (*Wakes, error) {
	w, err := newWakes(g.maps[headgateMapWakes])
	if err != nil {
		return nil, fmt.Errorf("listen to the programs: %w", err)
	}
	return w, nil
}

func newWakes(m *ebpf.Map) (*Wakes, error) {
	r, err := ringbuf.NewReader(m)
	if err != nil {
		return nil, err
	}
	r.SetDeadline(time.Unix(1, 0)) // takes what is there
	w := &Wakes{r: r}
	if w.ready, err = pollable(m.FD()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if w.conn, err = w.ready.SyscallConn(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// pollable returns another handle of something that can be waited for, which the
// runtime waits for.
func pollable(fd int) (*os.File, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("fcntl: %w", err)
	}
	if err := unix.SetNonblock(dup, true); err != nil { // how the runtime knows
		return nil, errors.Join(fmt.Errorf("fcntl: %w", err), unix.Close(dup))
	}
	return os.NewFile(uintptr(dup), "ring buffer"), nil
}

// The layout of struct wake, see bpf/types.h.
const (
	wakeSlotLen = 16
	wakeConnLen = 16 + 40 + 8 + 8
)

// Next waits for something to tell. After Close the error is one for [IsClosed].
func (w *Wakes) Next() (Wake, error) {
	var rec ringbuf.Record
	var err error
	trouble := w.conn.Read(func(uintptr) (done bool) {
		rec, err = w.r.Read()
		return !errors.Is(err, os.ErrDeadlineExceeded)
	})
	if trouble != nil { // of Close too, which only the reader has a name for
		_, err = w.r.Read()
		err = errors.Join(trouble, err)
	}
	if err != nil {
		return Wake{}, fmt.Errorf("listen to the programs: %w", err)
	}
	return parseWake(rec.RawSample)
}

// parseWake reads struct wake of bpf/types.h, of which a slot's is the beginning.
func parseWake(b []byte) (Wake, error) {
	if len(b) < wakeSlotLen {
		return Wake{}, fmt.Errorf("listen to the programs: an event of %d bytes", len(b))
	}
	wake := Wake{
		Kind:   WakeKind(binary.NativeEndian.Uint32(b[4:])),
		Target: binary.NativeEndian.Uint32(b),
		At:     time.Duration(binary.NativeEndian.Uint64(b[8:])),
	}
	if wake.Kind != WakeSlot && len(b) >= wakeConnLen {
		key := b[16:]
		wake.Client = netip.AddrPortFrom(netip.AddrFrom16([16]byte(key[:16])).Unmap(), binary.BigEndian.Uint16(key[36:]))
		wake.Server = netip.AddrPortFrom(netip.AddrFrom16([16]byte(key[16:32])).Unmap(), binary.NativeEndian.Uint16(key[38:]))
		wake.Device = binary.NativeEndian.Uint32(key[40:])
		wake.Cookie = binary.NativeEndian.Uint64(key[48:])
	}
	return wake, nil
}

// IsClosed says whether an error of Next comes from Close.
func IsClosed(err error) bool { return errors.Is(err, os.ErrClosed) }

// Close ends Next.
func (w *Wakes) Close() error { return errors.Join(w.r.Close(), w.ready.Close()) }
