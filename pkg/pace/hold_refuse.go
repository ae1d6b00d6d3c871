package pace

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"headgate/pkg/scope"
)

// refuser shows clients inside a network namespace that they are not let in.
type refuser struct {
	raw4, raw6 int // -1: this kernel has no such protocol
	destroyer  *scope.Destroyer
	cannot     error // why there is none
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
			err = fmt.Errorf("%w: to hold takes CAP_NET_RAW, which an agent gives up when no rule needs it as it starts: restart it", err)
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
		return nil
	})
	if err != nil {
		return r, err
	}
	r.destroyer, r.cannot = ns.NewDestroyer()
	if r.cannot != nil && !errors.Is(r.cannot, scope.ErrCannotDestroy) {
		return r, r.cannot
	}
	return r, nil
}

func (r *refuser) close() error {
	var errs []error
	for _, fd := range []int{r.raw4, r.raw6} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	if r.destroyer != nil {
		errs = append(errs, r.destroyer.Close())
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
	if r.destroyer == nil {
		return r.cannot
	}
	return r.destroyer.Destroy(scope.Connection{
		Client: f.Client, Server: f.Server, Device: device, Cookie: scope.AnyCookie,
	})
}
