package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
)

// Reason is why somebody was refused.
type Reason string

// The reasons of the programs.
const (
	ReasonLimit  Reason = "limit"  // as many are in flight, or wait, as may
	ReasonPace   Reason = "pace"   // its turn in the pace is too far off
	ReasonSource Reason = "source" // as many of its source are here as may be
	ReasonFlood  Reason = "flood"  // a stranger beside a SYN flood, and no room in the kernel for more of them
)

var reasons = map[headgateVerdict]Reason{
	headgateVerdictREJECT_LIMIT:  ReasonLimit,
	headgateVerdictREJECT_PACE:   ReasonPace,
	headgateVerdictREJECT_SOURCE: ReasonSource,
	headgateVerdictREJECT_FLOOD:  ReasonFlood,
}

// Refusal is somebody who was refused.
type Refusal struct {
	Target uint32
	At     time.Duration // CLOCK_MONOTONIC
	Client netip.AddrPort
	Reason Reason
	LetIn  bool // it would have been refused: nothing is in force
}

// Refusals reads who was refused: at most four of a target in each tick. The
// others, and those that there is no room for, are only counted.
type Refusals struct {
	r   *ringbuf.Reader
	rec ringbuf.Record
}

// NewRefusals returns a reader. There is one at a time.
func (g *Gate) NewRefusals() (*Refusals, error) {
	r, err := ringbuf.NewReader(g.maps[headgateMapEvents])
	if err != nil {
		return nil, fmt.Errorf("read refusals: %w", err)
	}
	r.SetDeadline(time.Unix(1, 0)) // the programs wake nobody: take what is there
	return &Refusals{r: r}, nil
}

// Each calls f with each refusal that was told since the last call, and does
// not wait for more.
func (r *Refusals) Each(f func(Refusal)) error {
	for {
		err := r.r.ReadInto(&r.rec)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read refusals: %w", err)
		}
		refusal, err := parseRefusal(r.rec.RawSample)
		if err != nil {
			return err
		}
		f(refusal)
	}
}

func parseRefusal(b []byte) (Refusal, error) {
	var e headgateEvent
	if len(b) < int(unsafe.Sizeof(e)) {
		return Refusal{}, fmt.Errorf("read refusals: one of %d bytes", len(b))
	}
	if err := binary.Read(bytes.NewReader(b), binary.NativeEndian, &e); err != nil {
		return Refusal{}, fmt.Errorf("read refusals: %w", err)
	}
	reason, ok := reasons[headgateVerdict(e.Verdict)]
	if !ok {
		return Refusal{}, fmt.Errorf("read refusals: reason %d", e.Verdict)
	}
	var addr [16]byte
	for i, word := range e.Remote {
		binary.NativeEndian.PutUint32(addr[4*i:], word)
	}
	return Refusal{
		Target: e.Target,
		At:     time.Duration(e.At),
		// In network byte order, read as a number of this machine's.
		Client: netip.AddrPortFrom(netip.AddrFrom16(addr).Unmap(), e.RemotePort<<8|e.RemotePort>>8),
		Reason: reason,
		LetIn:  e.LetIn != 0,
	}, nil
}

// Close lets go of the reader.
func (r *Refusals) Close() error { return r.r.Close() }
