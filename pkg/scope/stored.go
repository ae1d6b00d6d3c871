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
	inetDiagReqSkBPFStorages = 2
	skDiagBPFStorageReqMapFD = 1
	inetDiagSkBPFStorages    = 20
	tcpEstablished           = 1
	tcpCloseWait             = 8
)

// NotStored returns the clients of the connections to a port, in the namespace of
// the calling thread, whose sockets have nothing in a map of socket storage: of
// those that are established, or that the client alone has closed. It takes
// CAP_BPF. The error of a kernel that cannot tell wraps what it said.
//
// The kernel looks at the state first, and so touches no socket that is only just
// being made. Its BPF iterator of TCP sockets touches all.
func NotStored(mapFD int, port uint16) ([]netip.Addr, error) {
	var all []netip.Addr
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		req := nl.NewNetlinkRequest(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		req.AddData(connectionsRequest{family, port})
		stored := nl.NewRtAttr(inetDiagReqSkBPFStorages, nil)
		stored.AddRtAttr(skDiagBPFStorageReqMapFD, nl.Uint32Attr(uint32(mapFD)))
		req.AddData(stored)
		msgs, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
		if family == unix.AF_INET6 && errors.Is(err, unix.ENOENT) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list connections to port %d: %w", port, err)
		}
		for _, m := range msgs {
			client, is, err := parseStored(m)
			if err != nil {
				return nil, fmt.Errorf("list connections to port %d: %w", port, err)
			}
			if !is {
				all = append(all, client)
			}
		}
	}
	return all, nil
}

// connectionsRequest is struct inet_diag_req_v2 for what [NotStored] looks at.
type connectionsRequest struct {
	family uint8
	port   uint16
}

func (connectionsRequest) Len() int { return 56 }

func (r connectionsRequest) Serialize() []byte {
	b := make([]byte, r.Len())
	b[0] = r.family
	b[1] = unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], 1<<tcpEstablished|1<<tcpCloseWait)
	binary.BigEndian.PutUint16(b[8:], r.port)
	return b
}

// parseStored returns whose connection an inet_diag message is of, and whether
// there is storage.
func parseStored(m []byte) (client netip.Addr, stored bool, err error) {
	if len(m) < inetDiagMsgLen {
		return client, false, fmt.Errorf("inet_diag message of %d bytes", len(m))
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
	return client, stored, err
}
