package pace

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

// segment is a TCP header with options of 4 bytes, and payload.
func segment(flags byte, payload int) []byte {
	b := make([]byte, 24+payload)
	binary.BigEndian.PutUint16(b, 40000)
	binary.BigEndian.PutUint16(b[2:], 8080)
	binary.BigEndian.PutUint32(b[4:], 0xfffffff0)
	b[12], b[13] = 6<<4, flags
	return b
}

func ip4(options int, fragment uint16, payload []byte) []byte {
	b := make([]byte, 20+options)
	b[0] = 4<<4 | byte(len(b)/4)
	binary.BigEndian.PutUint16(b[6:], fragment)
	b[9] = 6
	copy(b[12:], []byte{10, 0, 0, 1})
	copy(b[16:], []byte{10, 0, 0, 2})
	return append(b, payload...)
}

func ip6(first byte, extensions []byte, payload []byte) []byte {
	b := make([]byte, 40)
	b[0], b[6] = 6<<4, first
	b[8], b[23] = 0xfd, 1
	b[24], b[39] = 0xfd, 2
	return slices.Concat(b, extensions, payload)
}

func TestHeaders(t *testing.T) {
	v4 := headers{
		client: netip.MustParseAddrPort("10.0.0.1:40000"), server: netip.MustParseAddrPort("10.0.0.2:8080"),
		seq: 0xfffffff0, len: 100,
	}
	v6 := v4
	v6.client, v6.server = netip.MustParseAddrPort("[fd00::1]:40000"), netip.MustParseAddrPort("[fd00::2]:8080")
	syn := v4
	syn.syn, syn.len = true, 1
	fin := v4
	fin.len = 101
	synAck := v4
	synAck.len = 1
	large := v4
	large.len = 100_000

	data := segment(0x10, 100)
	// next header, length in 8 bytes without the first 8, ...
	ext := func(next, length byte) []byte {
		return append([]byte{next, length}, make([]byte, int(length)*8+6)...)
	}
	ah := append([]byte{6, 4}, make([]byte, 22)...) // 24 bytes: 4 + 2 words
	fragment := func(offset uint16) []byte {
		b := []byte{6, 0, 0, 0, 1, 2, 3, 4}
		binary.BigEndian.PutUint16(b[2:], offset<<3|1)
		return b
	}
	for name, c := range map[string]struct {
		packet []byte
		total  int
		want   headers
		ok     bool
	}{
		"IPv4":                     {ip4(0, 0, data), 0, v4, true},
		"IPv4, do not fragment":    {ip4(0, 0x4000, data), 0, v4, true},
		"IPv4, first fragment":     {ip4(0, 0x2000, data), 0, v4, true},
		"IPv4, later fragment":     {ip4(0, 0x2001, data), 0, headers{}, false},
		"IPv4, options":            {ip4(40, 0, data), 0, v4, true},
		"SYN":                      {ip4(0, 0, segment(0x02, 0)), 0, syn, true},
		"SYN and ACK":              {ip4(0, 0, segment(0x12, 0)), 0, synAck, true},
		"PSH and FIN":              {ip4(0, 0, segment(0x19, 100)), 0, fin, true},
		"only the beginning":       {ip4(0, 0, data)[:60], 44 + 100_000, large, true},
		"IPv6":                     {ip6(6, nil, data), 0, v6, true},
		"IPv6, hop by hop":         {ip6(0, ext(6, 1), data), 0, v6, true},
		"IPv6, three headers":      {ip6(0, slices.Concat(ext(43, 0), ext(60, 2), ext(6, 0)), data), 0, v6, true},
		"IPv6, authentication":     {ip6(51, ah, data), 0, v6, true},
		"IPv6, first fragment":     {ip6(44, fragment(0), data), 0, v6, true},
		"IPv6, later fragment":     {ip6(44, fragment(1), data), 0, headers{}, false},
		"IPv6, unknown header":     {ip6(99, ext(6, 0), data), 0, headers{}, false},
		"IPv6, endless headers":    {ip6(0, ext(0, 255), nil), 0, headers{}, false},
		"UDP":                      {ip6(17, nil, data), 0, headers{}, false},
		"header longer than all":   {ip4(0, 0, data)[:44], 30, headers{}, false},
		"TCP header of no length":  {ip4(0, 0, make([]byte, 30)), 0, headers{}, false},
		"IPv4 header of no length": {append([]byte{0x40, 0, 0, 0, 0, 0, 0, 0, 0, 6}, make([]byte, 60)...), 0, headers{}, false},
		"neither":                  {[]byte{0x50, 1, 2, 3}, 0, headers{}, false},
		"nothing":                  {nil, 0, headers{}, false},
	} {
		if c.total == 0 {
			c.total = len(c.packet)
		}
		got, ok := parseHeaders(c.packet, c.total)
		if got != c.want || ok != c.ok {
			t.Errorf("%s: %+v, %t", name, got, ok)
		}
		for n := range len(c.packet) { // cut off anywhere
			parseHeaders(c.packet[:n], c.total)
		}
	}
}

// A sum over a correct packet is all ones.
func TestResetHasItsChecksum(t *testing.T) {
	for _, f := range []Flow{
		{Client: netip.MustParseAddrPort("10.0.0.1:40000"), Server: netip.MustParseAddrPort("192.168.1.255:8080")},
		{Client: netip.MustParseAddrPort("[fd00::1]:40000"), Server: netip.MustParseAddrPort("[fe80::ffff]:8080")},
	} {
		b := resetOf(f, 0xffffffff, 1)
		h, ok := parseHeaders(b, len(b))
		if !ok || h.client != f.Server || h.server != f.Client || h.seq != 0 || h.len != 0 {
			t.Fatalf("%+v, %t", h, ok)
		}
		at := 12
		if f.Client.Addr().Is6() {
			at = 8
		}
		if sum := onesSum(6+20, b[at:]); sum != 0xffff {
			t.Errorf("sum %#x", sum)
		}
		tcp := b[len(b)-20:]
		if ack := binary.BigEndian.Uint32(tcp[8:]); ack != 0 || tcp[13] != 0x14 {
			t.Errorf("ack %d, flags %#x", ack, tcp[13])
		}
	}
}

func FuzzHeaders(f *testing.F) {
	f.Add(ip4(4, 0, segment(0x10, 3)), 51)
	f.Add(ip6(0, []byte{6, 0, 0, 0, 0, 0, 0, 0}, segment(0x02, 0)), 72)
	f.Fuzz(func(t *testing.T, b []byte, total int) {
		h, ok := parseHeaders(b, total)
		if ok && (!h.client.Addr().IsValid() || h.client.Addr().Is4() != h.server.Addr().Is4()) {
			t.Errorf("%+v", h)
		}
	})
}
