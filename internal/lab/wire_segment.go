package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// TCPFlags are the flags of a TCP header, as in RFC 9293, section 3.1.
type TCPFlags uint8

// The flags that tests ask for.
const (
	FIN TCPFlags = 1 << iota
	SYN
	RST
	PSH
	ACK
)

const (
	macHeaderLen = 14
	ip4HeaderLen = 20
	ip6HeaderLen = 40
	tcpHeaderLen = 20
)

// Segment is a TCP segment without its options.
type Segment struct {
	Src, Dst netip.AddrPort
	Seq, Ack uint32
	Flags    TCPFlags
	Payload  []byte
}

// Has says whether of these flags those in want are set and no others.
func (s Segment) Has(want, of TCPFlags) bool { return s.Flags&of == want }

// parseSegment finds the TCP segment in an Ethernet frame. What follows the
// length that the IP header gives is padding. No VLAN, fragment or IPv6
// extension header is understood.
func parseSegment(frame []byte) (Segment, bool) {
	if len(frame) < macHeaderLen {
		return Segment{}, false
	}
	etherType, ip := binary.BigEndian.Uint16(frame[12:]), frame[macHeaderLen:]
	var src, dst netip.Addr
	var tcp []byte
	switch {
	case etherType == unix.ETH_P_IP && len(ip) >= ip4HeaderLen && ip[9] == unix.IPPROTO_TCP:
		total, header := int(binary.BigEndian.Uint16(ip[2:])), int(ip[0]&0xf)*4
		if header < ip4HeaderLen || total < header || total > len(ip) {
			return Segment{}, false
		}
		src, dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		tcp = ip[header:total]
	case etherType == unix.ETH_P_IPV6 && len(ip) >= ip6HeaderLen && ip[6] == unix.IPPROTO_TCP:
		total := ip6HeaderLen + int(binary.BigEndian.Uint16(ip[4:]))
		if total > len(ip) {
			return Segment{}, false
		}
		src, dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		tcp = ip[ip6HeaderLen:total]
	}
	if len(tcp) < tcpHeaderLen || int(tcp[12]>>4)*4 > len(tcp) {
		return Segment{}, false
	}
	return Segment{
		Src:     netip.AddrPortFrom(src, binary.BigEndian.Uint16(tcp)),
		Dst:     netip.AddrPortFrom(dst, binary.BigEndian.Uint16(tcp[2:])),
		Seq:     binary.BigEndian.Uint32(tcp[4:]),
		Ack:     binary.BigEndian.Uint32(tcp[8:]),
		Flags:   TCPFlags(tcp[13]),
		Payload: tcp[int(tcp[12]>>4)*4:],
	}, true
}

// SendSegment sends a segment from the host by a raw socket, as if it came
// from s.Src, which need not be an address of the host.
func (h *Host) SendSegment(s Segment) error {
	if s.Src.Addr().BitLen() != s.Dst.Addr().BitLen() {
		return errors.New("a segment's addresses are of one family")
	}
	packet, to := s.packet()
	return h.Do(func() error {
		family := unix.AF_INET
		if s.Dst.Addr().Is6() {
			family = unix.AF_INET6
		}
		// IPPROTO_RAW: the packet begins with its IP header.
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return fmt.Errorf("raw socket: %w", err)
		}
		defer unix.Close(fd)
		if err := unix.Sendto(fd, packet, 0, to); err != nil {
			return fmt.Errorf("sending a segment to %v: %w", s.Dst, err)
		}
		return nil
	})
}

func (s Segment) packet() ([]byte, unix.Sockaddr) {
	src, dst := s.Src.Addr(), s.Dst.Addr()
	tcp := make([]byte, tcpHeaderLen, tcpHeaderLen+len(s.Payload))
	binary.BigEndian.PutUint16(tcp, s.Src.Port())
	binary.BigEndian.PutUint16(tcp[2:], s.Dst.Port())
	binary.BigEndian.PutUint32(tcp[4:], s.Seq)
	binary.BigEndian.PutUint32(tcp[8:], s.Ack)
	tcp[12] = tcpHeaderLen / 4 << 4
	tcp[13] = byte(s.Flags)
	binary.BigEndian.PutUint16(tcp[14:], 1<<16-1) // window
	tcp = append(tcp, s.Payload...)

	pseudo := append(src.AsSlice(), dst.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(tcp)))
	pseudo = binary.BigEndian.AppendUint32(pseudo, unix.IPPROTO_TCP)
	binary.BigEndian.PutUint16(tcp[16:], checksum(append(pseudo, tcp...)))

	if dst.Is4() {
		ip := make([]byte, ip4HeaderLen)
		ip[0] = 4<<4 | ip4HeaderLen/4
		ip[8] = 64 // TTL
		ip[9] = unix.IPPROTO_TCP
		copy(ip[12:], src.AsSlice())
		copy(ip[16:], dst.AsSlice())
		return append(ip, tcp...), &unix.SockaddrInet4{Addr: dst.As4()} // the kernel fills in length and checksum
	}
	ip := make([]byte, ip6HeaderLen)
	ip[0] = 6 << 4
	binary.BigEndian.PutUint16(ip[4:], uint16(len(tcp)))
	ip[6] = unix.IPPROTO_TCP
	ip[7] = 64 // hop limit
	copy(ip[8:], src.AsSlice())
	copy(ip[24:], dst.AsSlice())
	return append(ip, tcp...), &unix.SockaddrInet6{Addr: dst.As16()}
}

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
