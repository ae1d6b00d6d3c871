package pace

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"headgate/pkg/scope"
)

// refuser shows clients inside a network namespace that they are not let in.
type refuser struct {
	raw4, raw6 int // -1: this kernel has no such protocol
	diag       *nl.SocketHandle
}

func newRefuser(ns *scope.Netns) (_ *refuser, err error) {
	r := &refuser{raw4: -1, raw6: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	err = ns.Do(func() error {
		// IPPROTO_RAW: the packet comes with its IP header.
		r.raw4, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w: to hold or drop takes CAP_NET_RAW", err)
		}
		if err != nil {
			return fmt.Errorf("raw socket: %w", err)
		}
		r.raw6, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			r.raw6 = -1 // a kernel without IPv6
		} else if err != nil {
			return fmt.Errorf("raw socket: %w", err)
		}
		s, err := nl.Subscribe(unix.NETLINK_INET_DIAG)
		if err != nil {
			return fmt.Errorf("inet_diag: %w", err)
		}
		r.diag = &nl.SocketHandle{Socket: s}
		return nil
	})
	return r, err
}

func (r *refuser) close() error {
	var errs []error
	for _, fd := range []int{r.raw4, r.raw6} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	if r.diag != nil {
		r.diag.Close()
	}
	return errors.Join(errs...)
}

// refuse resets a flow: its client sees a refused connection when it has sent
// a SYN, and a reset one when it has sent a request.
func (r *refuser) refuse(f Flow, p Packet) error {
	if f.SYN {
		return r.reset(f, p)
	}
	return r.destroy(f, p.Device)
}

func (r *refuser) reset(f Flow, syn Packet) (err error) {
	packet := resetOf(f, syn.Seq, syn.Len)
	to := f.Client.Addr()
	switch {
	case to.Is4():
		err = unix.Sendto(r.raw4, packet, 0, &unix.SockaddrInet4{Addr: to.As4()})
	case r.raw6 < 0:
		err = unix.EAFNOSUPPORT
	default:
		sa := &unix.SockaddrInet6{Addr: to.As16()}
		if to.IsLinkLocalUnicast() {
			sa.ZoneId = syn.Device
		}
		err = unix.Sendto(r.raw6, packet, 0, sa)
	}
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return nil // of a client that is not there; the kernel's own reset goes nowhere either
	}
	if err != nil {
		return fmt.Errorf("reset %v: %w", f.Client, err)
	}
	return nil
}

// destroy closes the server's end of a connection, which resets the client's.
// It is no error when there is none any more.
func (r *refuser) destroy(f Flow, device uint32) error {
	req := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_INET_DIAG: r.diag}
	req.AddData(destroyRequest{f, device})
	_, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("destroy the connection of %v: %w", f.Client, err)
	}
	return nil
}

// destroyRequest is struct inet_diag_req_v2 for one connection. An IPv4
// connection of a dual-stack listener is found as IPv4.
type destroyRequest struct {
	Flow
	device uint32 // a socket that is bound to one is found only with it
}

func (destroyRequest) Len() int { return 56 }

func (d destroyRequest) Serialize() []byte {
	b := make([]byte, d.Len())
	b[0] = unix.AF_INET6
	if d.Client.Addr().Is4() {
		b[0] = unix.AF_INET
	}
	b[1] = unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], ^uint32(0)) // in any state
	binary.BigEndian.PutUint16(b[8:], d.Server.Port())
	binary.BigEndian.PutUint16(b[10:], d.Client.Port())
	copy(b[12:28], d.Server.Addr().AsSlice())
	copy(b[28:44], d.Client.Addr().AsSlice())
	binary.NativeEndian.PutUint32(b[44:], d.device)
	// Any cookie.
	binary.NativeEndian.PutUint64(b[48:], ^uint64(0))
	return b
}
