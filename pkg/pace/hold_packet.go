package pace

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Of TCP's header.
const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpACK = 0x10

	tcpHeader = 20
)

// Of IP's.
const (
	ip4Header = 20
	ip6Header = 40
)

// headers is what a packet says about its flow.
type headers struct {
	client netip.AddrPort
	server netip.AddrPort
	syn    bool
	seq    uint32
	len    uint32 // sequence numbers
}

// parseHeaders reads the beginning b of an IP packet that has total bytes in
// all. Not ok is what is no TCP, or a later fragment, or cut off in a header.
func parseHeaders(b []byte, total int) (h headers, ok bool) {
	if len(b) == 0 {
		return headers{}, false
	}
	var from, to netip.Addr
	var at int
	switch b[0] >> 4 {
	case 4:
		if len(b) < ip4Header || b[9] != unix.IPPROTO_TCP || binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
			return headers{}, false
		}
		at = int(b[0]&15) * 4
		if at < ip4Header {
			return headers{}, false
		}
		from, to = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	case 6:
		if at, ok = skipToTCP(b); !ok {
			return headers{}, false
		}
		from, to = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	default:
		return headers{}, false
	}
	if len(b) < at+tcpHeader {
		return headers{}, false
	}
	tcp := b[at:]
	flags := tcp[13]
	payload := total - at - int(tcp[12]>>4)*4
	if tcp[12]>>4 < tcpHeader/4 || payload < 0 {
		return headers{}, false
	}
	h = headers{
		client: netip.AddrPortFrom(from, binary.BigEndian.Uint16(tcp)),
		server: netip.AddrPortFrom(to, binary.BigEndian.Uint16(tcp[2:])),
		syn:    flags&(tcpSYN|tcpACK) == tcpSYN,
		seq:    binary.BigEndian.Uint32(tcp[4:]),
		len:    uint32(payload),
	}
	if flags&tcpSYN != 0 {
		h.len++
	}
	if flags&tcpFIN != 0 {
		h.len++
	}
	return h, true
}

// skipToTCP returns where the TCP header of an IPv6 packet begins, behind the
// extension headers (RFC 8200, section 4).
func skipToTCP(b []byte) (at int, ok bool) {
	if len(b) < ip6Header {
		return 0, false
	}
	next, at := b[6], ip6Header
	for next != unix.IPPROTO_TCP {
		if len(b) < at+8 {
			return 0, false
		}
		length := (int(b[at+1]) + 1) * 8
		switch next {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS:
		case unix.IPPROTO_AH:
			length = (int(b[at+1]) + 2) * 4
		case unix.IPPROTO_FRAGMENT:
			if binary.BigEndian.Uint16(b[at+2:])&0xfff8 != 0 {
				return 0, false
			}
			length = 8
		default:
			return 0, false
		}
		next = b[at]
		at += length
	}
	return at, true
}

// resetOf returns the IP packet by which the server's end refuses a SYN with
// that many sequence numbers (RFC 9293, section 3.5.2). The kernel fills in
// the checksum of an IPv4 header.
func resetOf(f Flow, isn, length uint32) []byte {
	from, to := f.Server.Addr(), f.Client.Addr()
	const hops = 64
	var b, pseudo []byte
	if to.Is4() {
		b = make([]byte, ip4Header, ip4Header+tcpHeader)
		b[0] = 4<<4 | ip4Header/4
		binary.BigEndian.PutUint16(b[2:], ip4Header+tcpHeader)
		b[6] = 0x40 // do not fragment
		b[8], b[9] = hops, unix.IPPROTO_TCP
		copy(b[12:], from.AsSlice())
		copy(b[16:], to.AsSlice())
		pseudo = b[12:20]
	} else {
		b = make([]byte, ip6Header, ip6Header+tcpHeader)
		b[0] = 6 << 4
		binary.BigEndian.PutUint16(b[4:], tcpHeader)
		b[6], b[7] = unix.IPPROTO_TCP, hops
		copy(b[8:], from.AsSlice())
		copy(b[24:], to.AsSlice())
		pseudo = b[8:40]
	}
	at := len(b)
	b = b[:at+tcpHeader]
	tcp := b[at:]
	binary.BigEndian.PutUint16(tcp, f.Server.Port())
	binary.BigEndian.PutUint16(tcp[2:], f.Client.Port())
	binary.BigEndian.PutUint32(tcp[8:], isn+length)
	tcp[12] = tcpHeader / 4 << 4
	tcp[13] = tcpRST | tcpACK
	sum := onesSum(onesSum(unix.IPPROTO_TCP+tcpHeader, pseudo), tcp)
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum))
	return b
}

// onesSum adds the 16-bit words of b, whose length is even, to a sum in ones'
// complement (RFC 1071).
func onesSum(sum uint32, b []byte) uint32 {
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum
}
