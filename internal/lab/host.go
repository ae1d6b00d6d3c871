package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Host is one network namespace with its cgroup.
type Host struct {
	Name   string
	NetNS  string     // path of the namespace, under /run/netns
	Cgroup *Cgroup    // where Command starts processes
	Addr4  netip.Addr // the address on the first link
	Addr6  netip.Addr

	lab *Lab
	ns  int // file descriptor of the namespace, -1 when there is none
}

// Do runs f on the calling goroutine, with its thread inside the namespace.
// Sockets that f opens stay in the namespace, and so do processes that it
// starts; goroutines that it starts do not enter it. Calls nest.
func (h *Host) Do(f func() error) error {
	if h.ns < 0 {
		return fmt.Errorf("host %s is closed", h.Name)
	}
	runtime.LockOSThread()
	before, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("opening the thread's namespace: %w", err)
	}
	defer unix.Close(before)
	if err := unix.Setns(h.ns, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("entering the namespace of host %s: %w", h.Name, err)
	}
	// Deferred, so that it also runs when a test ends inside f. A thread that
	// cannot go back stays locked, and ends with its goroutine.
	defer func() {
		if unix.Setns(before, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return f()
}

// Listen is net.Listen inside the host. The address must be numeric. The
// listener belongs to the cgroup of the calling process; for one in the
// host's cgroup start a process (Server, Command).
func (h *Host) Listen(network, address string) (net.Listener, error) {
	var ln net.Listener
	err := h.Do(func() (err error) {
		ln, err = net.Listen(network, address)
		return err
	})
	return ln, err
}

// Dial connects from inside the host. The address must be numeric.
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := h.Do(func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// AddAddr adds addresses to a link of the host and returns when they can be
// used. There is no duplicate address detection.
func (h *Host) AddAddr(link string, addrs ...netip.Prefix) error {
	err := h.netlink(func(nl *netlink.Handle) error {
		dev, err := nl.LinkByName(link)
		if err != nil {
			return fmt.Errorf("link %s: %w", link, err)
		}
		for _, a := range addrs {
			addr := &netlink.Addr{IPNet: &net.IPNet{
				IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen()),
			}}
			if a.Addr().Is6() {
				addr.Flags = unix.IFA_F_NODAD
			}
			if err := nl.AddrAdd(dev, addr); err != nil {
				return fmt.Errorf("adding %v to %s: %w", a, link, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if a.Addr().Is6() {
			if err := h.awaitSolicitable(a.Addr()); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitSolicitable waits until neighbours can find an IPv6 address. The kernel
// joins its solicited-node multicast group from a work queue, and a neighbour
// that asks before that asks again only after a second.
func (h *Host) awaitSolicitable(addr netip.Addr) error {
	a := addr.As16()
	// RFC 4291, section 2.7.1; written as in /proc/net/igmp6.
	group := fmt.Sprintf("ff0200000000000000000001ff%x", a[13:])
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		var groups []byte
		err := h.Do(func() (err error) {
			groups, err = os.ReadFile("/proc/thread-self/net/igmp6")
			return err
		})
		if err != nil || strings.Contains(string(groups), group) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%v on host %s is not in use after 5s", addr, h.Name)
		}
	}
}

// Sysctl sets a kernel parameter of the host's namespace, for example
// Sysctl("net.core.somaxconn", "511").
func (h *Host) Sysctl(key, value string) error {
	return h.Do(func() error {
		path := filepath.Join("/proc/sys", strings.ReplaceAll(key, ".", "/"))
		// The file exists and is not to be made: no O_CREATE.
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("sysctl %s: %w", key, err)
		}
		_, err = f.WriteString(value)
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("sysctl %s = %s: %w", key, value, err)
		}
		return nil
	})
}

func (h *Host) setUp() error {
	if err := h.up("lo"); err != nil {
		return err
	}
	// The hub forwards between the other hosts; and a link that comes up
	// later has its link-local address without delay.
	for _, key := range []string{
		"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding",
	} {
		if err := h.Sysctl(key, "1"); err != nil {
			return err
		}
	}
	return h.Sysctl("net.ipv6.conf.default.accept_dad", "0")
}

func (h *Host) up(link string) error {
	return h.netlink(func(nl *netlink.Handle) error {
		dev, err := nl.LinkByName(link)
		if err != nil {
			return fmt.Errorf("link %s: %w", link, err)
		}
		if err := nl.LinkSetUp(dev); err != nil {
			return fmt.Errorf("setting %s up: %w", link, err)
		}
		return nil
	})
}

// SetLink sets a link of the host up or down. Down, it loses its IPv6 addresses.
func (h *Host) SetLink(link string, up bool) error {
	if up {
		return h.up(link)
	}
	return h.netlink(func(nl *netlink.Handle) error {
		dev, err := nl.LinkByName(link)
		if err != nil {
			return fmt.Errorf("link %s: %w", link, err)
		}
		if err := nl.LinkSetDown(dev); err != nil {
			return fmt.Errorf("setting %s down: %w", link, err)
		}
		return nil
	})
}

func (h *Host) defaultRoute(link string, gateways ...netip.Addr) error {
	return h.netlink(func(nl *netlink.Handle) error {
		dev, err := nl.LinkByName(link)
		if err != nil {
			return fmt.Errorf("link %s: %w", link, err)
		}
		for _, gw := range gateways {
			route := &netlink.Route{LinkIndex: dev.Attrs().Index, Gw: gw.AsSlice()}
			if err := nl.RouteAdd(route); err != nil {
				return fmt.Errorf("default route by %v: %w", gw, err)
			}
		}
		return nil
	})
}

// AddRoute has the host send what is for a network to a neighbour on one of its links.
func (h *Host) AddRoute(link string, to netip.Prefix, by netip.Addr) error {
	return h.netlink(func(nl *netlink.Handle) error {
		dev, err := nl.LinkByName(link)
		if err != nil {
			return fmt.Errorf("link %s: %w", link, err)
		}
		dst := &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
		if err := nl.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Dst: dst, Gw: by.AsSlice()}); err != nil {
			return fmt.Errorf("route to %v by %v: %w", to, by, err)
		}
		return nil
	})
}

func (h *Host) netlink(f func(*netlink.Handle) error) error {
	nl, err := netlink.NewHandleAt(netns.NsHandle(h.ns), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer nl.Close()
	return f(nl)
}

func (h *Host) close() error {
	if h.ns < 0 {
		return nil
	}
	err := unix.Close(h.ns)
	h.ns = -1
	return errors.Join(err, removeNamedNS(h.NetNS))
}
