package lab

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Sockets returns the remote ends of the kernel's TCP sockets with a local port
// on the host that are in one of the states of linux/tcp_states.h.
func (h *Host) Sockets(port uint16, states ...int) (remote []netip.AddrPort, err error) {
	// struct inet_diag_req_v2 of linux/inet_diag.h
	req := make([]byte, 56)
	req[1] = unix.IPPROTO_TCP
	mask := uint32(0)
	for _, s := range states {
		mask |= 1 << s
	}
	binary.NativeEndian.PutUint32(req[4:], mask)
	err = h.Do(func() error {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			req[0] = family
			r := nl.NewNetlinkRequest(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
			r.AddRawData(req)
			msgs, err := r.Execute(unix.NETLINK_INET_DIAG, 0)
			if err != nil {
				return err
			}
			// struct inet_diag_msg: the ports at 4 and 6, the addresses at 8 and 24.
			for _, m := range msgs {
				if binary.BigEndian.Uint16(m[4:]) != port {
					continue
				}
				addr := netip.AddrFrom16([16]byte(m[24:40])).Unmap()
				if family == unix.AF_INET {
					addr = netip.AddrFrom4([4]byte(m[24:28]))
				}
				remote = append(remote, netip.AddrPortFrom(addr, binary.BigEndian.Uint16(m[6:])))
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("asking for the sockets of host %s: %w", h.Name, err)
	}
	return remote, nil
}
