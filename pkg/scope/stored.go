package scope

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// From linux/inet_diag.h, linux/sock_diag.h and linux/tcp_states.h.
const (
	inetDiagReqBytecode      = 1
	inetDiagReqSkBPFStorages = 2
	inetDiagBCSGE            = 2
	inetDiagBCSLE            = 3
	skDiagBPFStorageReqMapFD = 1
	inetDiagSkBPFStorages    = 20
	tcpEstablished           = 1
	tcpCloseWait             = 8
)

// NotStored calls f with the server's port and the client of each connection to the
// ports from first to last, in the namespace of the calling thread, whose socket has
// nothing in a map of socket storage: of those that are established, or that the
// client alone has closed. It stops when f says so. It takes CAP_BPF. The error of a
// kernel that cannot tell wraps what it said.
//
// The kernel looks at the state first, and so touches no socket that is only just
// being made. Its BPF iterator of TCP sockets touches all. It goes through its whole
// table for a call, a millisecond: so one is for all ports.
func NotStored(mapFD int, first, last uint16, f func(port uint16, client netip.Addr) (more bool)) error {
	more := true
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if !more {
			break
		}
		req := nl.NewNetlinkRequest(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		req.AddData(connectionsRequest(family))
		req.AddData(nl.NewRtAttr(inetDiagReqBytecode, between(first, last)))
		stored := nl.NewRtAttr(inetDiagReqSkBPFStorages, nil)
		stored.AddRtAttr(skDiagBPFStorageReqMapFD, nl.Uint32Attr(uint32(mapFD)))
		req.AddData(stored)
		var bad error
		err := req.ExecuteIter(unix.NETLINK_INET_DIAG, 0, func(m []byte) bool {
			var port uint16
			var client netip.Addr
			var is bool
			if port, client, is, bad = parseStored(m); bad == nil && !is {
				more = f(port, client)
			}
			return more && bad == nil
		})
		if family == unix.AF_INET6 && errors.Is(err, unix.ENOENT) {
			continue // a kernel without IPv6
		}
		if err := errors.Join(err, bad); err != nil {
			return fmt.Errorf("list connections to ports %d to %d: %w", first, last, err)
		}
	}
	return nil
}

// between is what the kernel runs on each socket: the local port is at least first,
// and at most last. See struct inet_diag_bc_op; where it jumps to the end the socket
// is reported, and beyond it is not.
func between(first, last uint16) []byte {
	const each = 8 // a comparison, and the port in a second word
	var b []byte
	for i, op := range []struct {
		code byte
		port uint16
	}{{inetDiagBCSGE, first}, {inetDiagBCSLE, last}} {
		b = append(b, op.code, each)
		b = binary.NativeEndian.AppendUint16(b, uint16((2-i)*each+4))
		b = append(b, 0, 0)
		b = binary.NativeEndian.AppendUint16(b, op.port)
	}
	return b
}

// connectionsRequest is struct inet_diag_req_v2 for what [NotStored] looks at, of a
// family.
type connectionsRequest uint8

func (connectionsRequest) Len() int { return 56 }

func (r connectionsRequest) Serialize() []byte {
	b := make([]byte, r.Len())
	b[0] = uint8(r)
	b[1] = unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], 1<<tcpEstablished|1<<tcpCloseWait)
	return b
}

// parseStored returns whose connection an inet_diag message is of and to which port,
// and whether there is storage.
func parseStored(m []byte) (port uint16, client netip.Addr, stored bool, err error) {
	if len(m) < inetDiagMsgLen {
		return 0, client, false, fmt.Errorf("inet_diag message of %d bytes", len(m))
	}
	if m[0] == unix.AF_INET {
		client = netip.AddrFrom4([4]byte(m[24:]))
	} else {
		client = netip.AddrFrom16([16]byte(m[24:]))
	}
	attrs, err := diagAttributes(m)
	for _, a := range attrs {
		if a.Attr.Type&^unix.NLA_F_NESTED == inetDiagSkBPFStorages && len(a.Value) > 0 {
			stored = true
		}
	}
	return binary.BigEndian.Uint16(m[4:]), client, stored, err
}
