package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// skipStats asks for links without their counters, most of what a link is to
// rtnetlink: RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h.
const skipStats = 1 << 3

// dump sends a request for a list, again if the list changed meanwhile.
func dump(request, answer uint16, body ...nl.NetlinkRequestData) (msgs [][]byte, err error) {
	for range 5 {
		req := nl.NewNetlinkRequest(int(request), unix.NLM_F_DUMP)
		for _, b := range body {
			req.AddData(b)
		}
		if msgs, err = req.Execute(unix.NETLINK_ROUTE, answer); !errors.Is(err, nl.ErrDumpInterrupted) {
			break
		}
	}
	return msgs, err
}

func (h *host) devices() ([]Device, error) {
	msgs, err := dump(unix.RTM_GETLINK, unix.RTM_NEWLINK, nl.NewIfInfomsg(unix.AF_UNSPEC),
		nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	if err != nil {
		return nil, err
	}
	all := make([]Device, 0, len(msgs))
	for _, m := range msgs {
		d, _, err := parseDevice(m)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// parseDevice reads struct ifinfomsg and its attributes. Bridges speak of
// their ports in messages of a family of their own.
func parseDevice(m []byte) (d Device, family uint8, err error) {
	if len(m) < unix.SizeofIfInfomsg {
		return d, 0, fmt.Errorf("rtnetlink: link of %d bytes", len(m))
	}
	d.Index = int(int32(binary.NativeEndian.Uint32(m[4:])))
	d.Loopback = binary.NativeEndian.Uint32(m[8:])&unix.IFF_LOOPBACK != 0
	err = attributes(m[unix.SizeofIfInfomsg:], func(at uint16, value []byte) error {
		switch at {
		case unix.IFLA_IFNAME:
			d.Name = text(value)
		case unix.IFLA_LINKINFO:
			return attributes(value, func(at uint16, value []byte) error {
				if at == unix.IFLA_INFO_KIND {
					d.Kind = text(value)
				}
				return nil
			})
		}
		return nil
	})
	return d, m[0], err
}

func attributes(b []byte, f func(at uint16, value []byte) error) error {
	// The parser reads the padding of the last one, which may be missing.
	b = append(slices.Clip(b), make([]byte, -len(b)&3)...)
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return fmt.Errorf("rtnetlink: attributes: %w", err)
	}
	for _, a := range attrs {
		if err := f(a.Attr.Type&^unix.NLA_F_NESTED, a.Value); err != nil {
			return err
		}
	}
	return nil
}

// text is a string that ends with a zero byte.
func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

func (h *host) watch(ctx context.Context) (<-chan change, error) {
	var s *nl.NetlinkSocket
	err := h.ns.Do(func() (err error) {
		s, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to links: %w", err)
	}
	// Some hundred devices at once; where even that is not allowed, what is
	// lost is noticed.
	_ = s.SetReceiveBufferSize(1<<20, true)

	changes := make(chan change)
	stop := context.AfterFunc(ctx, s.Close)
	go func() {
		defer close(changes)
		for {
			msgs, from, err := s.Receive()
			if err != nil {
				if stop() {
					s.Close()
					h.log.Debug("changes of devices were lost", "reason", err)
				}
				return
			}
			if from.Pid != nl.PidKernel {
				continue
			}
			for _, m := range msgs {
				if m.Header.Type != unix.RTM_NEWLINK && m.Header.Type != unix.RTM_DELLINK {
					continue
				}
				d, family, err := parseDevice(m.Data)
				if err != nil || family != unix.AF_UNSPEC {
					continue
				}
				select {
				case changes <- change{d.Index, d.Name, m.Header.Type == unix.RTM_DELLINK}:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return changes, nil
}

// filter is a TC filter of any kind. Handle 0 stands for all of one priority,
// and is listed even if they are none.
type filter struct {
	index      int
	parent     uint32
	chain      uint32
	prio       uint16
	proto      uint16
	handle     uint32
	kind, name string
	id         ebpf.ProgramID // 0 if it is not an eBPF program
	tag        string
}

// filtersOf lists the filters of a device, in the order in which they run.
// There are none without a qdisc, and none without the device.
func filtersOf(index int, parent uint32) ([]filter, error) {
	msgs, err := dump(unix.RTM_GETTFILTER, unix.RTM_NEWTFILTER,
		&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Parent: parent})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // a kernel without filters
	}
	if err != nil {
		return nil, fmt.Errorf("list filters: %w", err)
	}
	all := make([]filter, 0, len(msgs))
	for _, m := range msgs {
		f, err := parseFilter(m)
		if err != nil {
			return nil, err
		}
		f.index, f.parent = index, parent
		all = append(all, f)
	}
	return all, nil
}

// parseFilter reads struct tcmsg and its attributes.
func parseFilter(m []byte) (f filter, err error) {
	if len(m) < nl.SizeofTcMsg {
		return f, fmt.Errorf("rtnetlink: filter of %d bytes", len(m))
	}
	f.handle = binary.NativeEndian.Uint32(m[8:])
	info := binary.NativeEndian.Uint32(m[16:])
	f.prio, f.proto = uint16(info>>16), networkOrder(uint16(info))
	var options []byte
	err = attributes(m[nl.SizeofTcMsg:], func(at uint16, value []byte) error {
		switch {
		case at == nl.TCA_KIND:
			f.kind = text(value)
		case at == nl.TCA_OPTIONS:
			options = value
		case at == nl.TCA_CHAIN && len(value) == 4:
			f.chain = binary.NativeEndian.Uint32(value)
		}
		return nil
	})
	if err != nil || f.kind != "bpf" {
		return f, err
	}
	return f, attributes(options, func(at uint16, value []byte) error {
		switch {
		case at == nl.TCA_BPF_NAME:
			f.name = text(value)
		case at == nl.TCA_BPF_TAG:
			f.tag = hex.EncodeToString(value)
		case at == nl.TCA_BPF_ID && len(value) == 4:
			f.id = ebpf.ProgramID(binary.NativeEndian.Uint32(value))
		}
		return nil
	})
}

// networkOrder converts from or to the order of bytes on the wire.
func networkOrder(v uint16) uint16 {
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		return v
	}
	return bits.ReverseBytes16(v)
}

// bpf is the filter for netlink, with a program in direct action.
func (f filter) bpf(prog int, name string) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: f.index, Parent: f.parent, Priority: f.prio, Protocol: f.proto, Handle: f.handle,
		},
		Fd: prog, Name: name, DirectAction: true,
	}
}
