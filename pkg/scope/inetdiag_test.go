package scope

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func TestListenRequest(t *testing.T) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		b := listenRequest(family).Serialize()
		if len(b) != listenRequest(family).Len() || b[0] != family || b[1] != unix.IPPROTO_TCP {
			t.Errorf("family %d: %x", family, b)
		}
	}
}

// message is an inet_diag message with attributes.
func message(port uint16, attrs ...[]byte) []byte {
	b := make([]byte, inetDiagMsgLen)
	binary.BigEndian.PutUint16(b[4:], port)
	binary.NativeEndian.PutUint32(b[56:], 3)
	binary.NativeEndian.PutUint32(b[60:], 511)
	for _, a := range attrs {
		b = append(b, a...)
	}
	return b
}

func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	return append(binary.NativeEndian.AppendUint16(b, kind), value...)
}

func TestParseListener(t *testing.T) {
	meminfo := make([]byte, 9*4)
	binary.NativeEndian.PutUint32(meminfo[8*4:], 7)
	group := binary.NativeEndian.AppendUint64(nil, 4711)
	plain := Listener{Port: 8080, Queued: 3, Backlog: 511}
	full := plain
	full.CgroupID, full.Dropped = 4711, 7
	for _, tt := range []struct {
		name string
		msg  []byte
		want Listener
		bad  bool
	}{
		{"nothing", nil, Listener{}, true},
		{"too short", message(8080)[:71], Listener{}, true},
		{"no attributes", message(8080), plain, false},
		{"all", message(8080, attribute(inetDiagCgroupID, group), attribute(inetDiagSkMeminfo, meminfo)), full, false},
		{"more than we know", message(8080, attribute(99, make([]byte, 8)), attribute(inetDiagSkMeminfo, append(meminfo, 1, 2, 3, 4)), attribute(inetDiagCgroupID, group)), full, false},
		{"an old kernel's memory", message(8080, attribute(inetDiagSkMeminfo, meminfo[:32])), plain, false},
		{"a cgroup of another size", message(8080, attribute(inetDiagCgroupID, group[:4])), plain, false},
		{"an attribute without its padding", message(8080, attribute(8, []byte{1})), plain, false},
		{"an attribute that is cut off", message(8080, attribute(inetDiagCgroupID, group)[:8]), Listener{}, true},
		{"an attribute of no length", message(8080, make([]byte, 4)), Listener{}, true},
		{"less than an attribute", message(8080, []byte{1, 2}), Listener{}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Nothing behind the message may be read.
			msg := tt.msg[:len(tt.msg):len(tt.msg)]
			got, err := parseListener(msg)
			if got != tt.want || (err != nil) != tt.bad {
				t.Errorf("%+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

func FuzzParseListener(f *testing.F) {
	f.Add([]byte{})
	f.Add(message(8080))
	f.Add(message(8080, attribute(inetDiagSkMeminfo, make([]byte, 36)), attribute(inetDiagCgroupID, make([]byte, 8)), attribute(8, []byte{1})))
	f.Fuzz(func(t *testing.T, msg []byte) {
		l, err := parseListener(msg)
		if err != nil && l != (Listener{}) {
			t.Errorf("%+v with %v", l, err)
		}
		if len(msg) < inetDiagMsgLen && err == nil {
			t.Errorf("%d bytes are enough for %+v", len(msg), l)
		}
		if err == nil && l.Port != uint16(msg[4])<<8|uint16(msg[5]) {
			t.Errorf("port %d", l.Port)
		}
	})
}

func TestParseStored(t *testing.T) {
	client := func(family uint8, address string, attrs ...[]byte) []byte {
		m := message(8080, attrs...)
		m[0] = family
		copy(m[24:], netip.MustParseAddr(address).AsSlice())
		return m
	}
	storage := attribute(inetDiagSkBPFStorages|unix.NLA_F_NESTED, attribute(1, make([]byte, 8)))
	other := attribute(inetDiagCgroupID, make([]byte, 8))
	for _, tt := range []struct {
		name   string
		msg    []byte
		client string
		stored bool
		bad    bool
	}{
		{"nothing", nil, "", false, true},
		{"too short", message(8080)[:71], "", false, true},
		{"IPv4, none", client(unix.AF_INET, "192.0.2.1"), "192.0.2.1", false, false},
		{"IPv4", client(unix.AF_INET, "192.0.2.1", other, storage), "192.0.2.1", true, false},
		{"IPv6", client(unix.AF_INET6, "2001:db8::1", storage), "2001:db8::1", true, false},
		{"mapped", client(unix.AF_INET6, "::ffff:192.0.2.1", other), "::ffff:192.0.2.1", false, false},
		{"of another map", client(unix.AF_INET6, "2001:db8::1", attribute(inetDiagSkBPFStorages, nil)), "2001:db8::1", false, false},
	} {
		port, got, stored, err := parseStored(tt.msg)
		if (err != nil) != tt.bad || err == nil && (port != 8080 || got.String() != tt.client || stored != tt.stored) {
			t.Errorf("%s: %v, %v, %v", tt.name, got, stored, err)
		}
	}
}
