package scope

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Listener is a listening TCP socket as inet_diag(7) shows it.
type Listener struct {
	Port     uint16
	CgroupID uint64 // of the process that made the socket, when it made it
	Queued   int    // established connections not accepted yet
	Backlog  int    // most that may be queued
	Dropped  uint64 // packets: of connections that found a full queue, and strays; of 2^32
}

// From linux/inet_diag.h and linux/tcp_states.h.
const (
	inetDiagMsgLen    = 72
	inetDiagSkMeminfo = 7
	inetDiagCgroupID  = 21
	meminfoDrops      = 8 // index into the words of SKMEMINFO
	tcpListen         = 10
)

// Listeners returns the listening TCP sockets, IPv4 and IPv6, in the
// namespace of the calling thread.
func Listeners() ([]Listener, error) {
	var all []Listener
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		req := nl.NewNetlinkRequest(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		req.AddData(listenRequest(family))
		msgs, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
		if family == unix.AF_INET6 && errors.Is(err, unix.ENOENT) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list listeners: %w", err)
		}
		for _, m := range msgs {
			l, err := parseListener(m)
			if err != nil {
				return nil, fmt.Errorf("list listeners: %w", err)
			}
			all = append(all, l)
		}
	}
	return all, nil
}

// listenRequest is struct inet_diag_req_v2 for the listeners of a family.
type listenRequest uint8

func (listenRequest) Len() int { return 56 }

func (family listenRequest) Serialize() []byte {
	b := make([]byte, family.Len())
	b[0] = uint8(family)
	b[1] = unix.IPPROTO_TCP
	b[2] = 1 << (inetDiagSkMeminfo - 1)
	binary.NativeEndian.PutUint32(b[4:], 1<<tcpListen)
	return b
}

func parseListener(m []byte) (Listener, error) {
	if len(m) < inetDiagMsgLen {
		return Listener{}, fmt.Errorf("inet_diag message of %d bytes", len(m))
	}
	l := Listener{
		Port:    binary.BigEndian.Uint16(m[4:]),
		Queued:  int(binary.NativeEndian.Uint32(m[56:])),
		Backlog: int(binary.NativeEndian.Uint32(m[60:])),
	}
	attrs, err := diagAttributes(m)
	if err != nil {
		return Listener{}, err
	}
	for _, a := range attrs {
		switch {
		case a.Attr.Type == inetDiagCgroupID && len(a.Value) == 8:
			l.CgroupID = binary.NativeEndian.Uint64(a.Value)
		case a.Attr.Type == inetDiagSkMeminfo && len(a.Value) >= 4*(meminfoDrops+1):
			l.Dropped = uint64(binary.NativeEndian.Uint32(a.Value[4*meminfoDrops:]))
		}
	}
	return l, nil
}

// diagAttributes returns the attributes of an inet_diag message.
func diagAttributes(m []byte) ([]syscall.NetlinkRouteAttr, error) {
	// The parser reads the padding of the last attribute, which may be missing.
	attributes := m[inetDiagMsgLen:]
	attributes = append(slices.Clip(attributes), make([]byte, -len(attributes)&3)...)
	attrs, err := nl.ParseRouteAttr(attributes)
	if err != nil {
		return nil, fmt.Errorf("inet_diag attributes: %w", err)
	}
	return attrs, nil
}
