package scope

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ErrCannotDestroy means that the kernel has no SOCK_DESTROY
// (CONFIG_INET_DIAG_DESTROY).
var ErrCannotDestroy = errors.New("this kernel cannot end connections (CONFIG_INET_DIAG_DESTROY)")

// sockDestroy is SOCK_DESTROY of linux/sock_diag.h.
const sockDestroy = 21

// noDevice is no device's index. A socket that is bound to none is found by any, and
// by this one the programs know that no packet has come (NOT_A_PACKET in bpf/syn.h):
// in place of a connection that is gone the kernel looks for its listener. Not 0, which
// the kernel's test runs of a program have for any packet.
const noDevice = ^uint32(0)

// Connection is a TCP connection as its server's host sees it.
type Connection struct {
	Client, Server netip.AddrPort
	Device         uint32 // what its socket is bound to, by interface index; 0: nothing
	Cookie         uint64 // of its socket, so that no later one of the same addresses is meant
}

// Destroyer ends TCP connections of one namespace: both sides see a reset. It
// is safe for concurrent use.
type Destroyer struct{ conn *netlink.Conn }

// NewDestroyer returns the Destroyer of a namespace, or an error that wraps
// [ErrCannotDestroy].
func (ns *Netns) NewDestroyer() (*Destroyer, error) {
	var conn *netlink.Conn
	err := ns.Do(func() (err error) {
		conn, err = netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("socket diagnostics: %w", err)
	}
	d := &Destroyer{conn: conn}
	nobody := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
	if err := d.Destroy(Connection{Client: nobody, Server: nobody, Cookie: 1}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return d, nil
}

// Close lets go of the namespace.
func (d *Destroyer) Close() error { return d.conn.Close() }

// Destroy ends a connection. One that is gone already is no error.
func (d *Destroyer) Destroy(c Connection) error {
	_, err := d.conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  sockDestroy,
			Flags: netlink.Request | netlink.Acknowledge,
		},
		Data: destroyRequest(c),
	})
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %w", ErrCannotDestroy, err)
	}
	return fmt.Errorf("end the connection of %v: %w", c.Client, err)
}

// destroyRequest is struct inet_diag_req_v2 of linux/inet_diag.h.
func destroyRequest(c Connection) []byte {
	b := make([]byte, 56)
	client, server := c.Client.Addr().Unmap(), c.Server.Addr().Unmap()
	b[0] = unix.AF_INET
	if client.Is6() {
		b[0] = unix.AF_INET6
	}
	b[1] = unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], ^uint32(0)) // in whatever state
	id := b[8:]
	binary.BigEndian.PutUint16(id, c.Server.Port())
	binary.BigEndian.PutUint16(id[2:], c.Client.Port())
	copy(id[4:20], server.AsSlice())
	copy(id[20:36], client.AsSlice())
	device := c.Device
	if device == 0 {
		device = noDevice
	}
	binary.NativeEndian.PutUint32(id[36:], device)
	binary.NativeEndian.PutUint32(id[40:], uint32(c.Cookie))
	binary.NativeEndian.PutUint32(id[44:], uint32(c.Cookie>>32))
	return b
}
