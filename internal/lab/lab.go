// Package lab makes hosts out of network namespaces, for tests of the kernel
// programs and for the demo. It needs root and no external program.
//
// A lab is a star: its first host, the hub, has a veth pair to each other
// host, with IPv4 and IPv6 addresses that can be used at once. Each host has
// a named network namespace and a cgroup2 of its own. Everything that a lab
// makes carries a name that begins with "hg-" and the process id, so that what
// a killed process left behind is recognised, and removed by the next New.
package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Prefix begins the names of the namespaces, cgroups and temporary directories of labs.
const Prefix = "hg-"

// ErrNotRoot is returned by New when the process may not make namespaces.
var ErrNotRoot = errors.New("network namespaces need root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")

var (
	hostName = regexp.MustCompile(`^[a-z][a-z0-9]{0,9}$`)
	sequence atomic.Uint32 // numbers the labs of this process
)

// Lab is a set of hosts. Its methods are safe for concurrent use.
type Lab struct {
	id    string
	hosts []*Host
	group *Cgroup // the parent of the hosts' cgroups

	mu     sync.Mutex
	cmds   []*Cmd
	closed bool
}

// New makes one host for each name; the first one is the hub. Names are up to
// ten lower-case letters and digits. The hub's address on its link to the
// n-th other host (n from 1) is 10.83.n.1 and fd83:n::1, the other's ends in
// 2 and has the hub as its default route. The caller must Close the lab.
func New(names ...string) (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	if len(names) == 0 || len(names) > 250 {
		return nil, fmt.Errorf("a lab has 1 to 250 hosts, not %d", len(names))
	}
	seen := map[string]bool{}
	for _, name := range names {
		if !hostName.MatchString(name) || seen[name] {
			return nil, fmt.Errorf("host name %q: not 1 to 10 lower-case letters and digits, or used twice", name)
		}
		seen[name] = true
	}
	if err := Sweep(); err != nil {
		return nil, fmt.Errorf("removing what earlier processes left: %w", err)
	}

	l := &Lab{id: fmt.Sprintf("%s%d-%d", Prefix, os.Getpid(), sequence.Add(1))}
	if err := l.build(names); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Lab) build(names []string) error {
	root, err := cgroupRoot()
	if err != nil {
		return err
	}
	if l.group, err = root.child(l.id); err != nil {
		return err
	}
	for _, name := range names {
		h := &Host{Name: name, lab: l, ns: -1}
		l.hosts = append(l.hosts, h)
		if h.Cgroup, err = l.group.child(name); err != nil {
			return err
		}
		if h.NetNS, h.ns, err = newNamedNS(l.id + "-" + name); err != nil {
			return fmt.Errorf("host %s: %w", name, err)
		}
		if err := h.setUp(); err != nil {
			return fmt.Errorf("host %s: %w", name, err)
		}
	}
	for n, spoke := range l.hosts[1:] {
		if err := join(l.hosts[0], spoke, n+1); err != nil {
			return fmt.Errorf("joining %s and %s: %w", names[0], spoke.Name, err)
		}
	}
	return nil
}

// join lays the n-th link. Both ends are made inside their namespaces and
// never exist on the machine itself.
func join(hub, spoke *Host, n int) error {
	nl, err := netlink.NewHandleAt(netns.NsHandle(hub.ns), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer nl.Close()

	attrs := netlink.NewLinkAttrs()
	attrs.Name = spoke.Name
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: hub.Name, PeerNamespace: netlink.NsFd(spoke.ns)}
	if err := nl.LinkAdd(veth); err != nil {
		return fmt.Errorf("making a veth pair: %w", err)
	}
	// Both ends must be up before the addresses come: an address on a link
	// without carrier is not usable at once.
	if err := hub.up(spoke.Name); err != nil {
		return err
	}
	if err := spoke.up(hub.Name); err != nil {
		return err
	}
	hubs := []netip.Prefix{linkAddr4(n, 1), linkAddr6(n, 1)}
	spokes := []netip.Prefix{linkAddr4(n, 2), linkAddr6(n, 2)}
	if err := hub.AddAddr(spoke.Name, hubs...); err != nil {
		return err
	}
	if err := spoke.AddAddr(hub.Name, spokes...); err != nil {
		return err
	}
	if n == 1 {
		hub.Addr4, hub.Addr6 = hubs[0].Addr(), hubs[1].Addr()
	}
	spoke.Addr4, spoke.Addr6 = spokes[0].Addr(), spokes[1].Addr()
	return spoke.defaultRoute(hub.Name, hubs[0].Addr(), hubs[1].Addr())
}

func linkAddr4(n, end int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 83, byte(n), byte(end)}), 24)
}

func linkAddr6(n, end int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x83, 3: byte(n), 15: byte(end)}), 64)
}

// Host returns the host of that name, nil when there is none.
func (l *Lab) Host(name string) *Host {
	for _, h := range l.hosts {
		if h.Name == name {
			return h
		}
	}
	return nil
}

// Close kills every process that was started in the lab and removes its
// cgroups and namespaces. It may be called more than once.
func (l *Lab) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true

	var errs []error
	if l.group != nil {
		errs = append(errs, l.group.kill())
		for _, c := range l.cmds {
			_ = c.Wait() // its end is of no interest, only that it is reaped
		}
		errs = append(errs, l.group.remove())
	}
	for _, h := range l.hosts {
		errs = append(errs, h.close())
	}
	errs = append(errs, os.RemoveAll(l.temp()))
	return errors.Join(errs...)
}

// temp is where the lab's files are, when there are any.
func (l *Lab) temp() string { return filepath.Join(os.TempDir(), l.id) }

// tempDir makes a directory that goes with the lab.
func (l *Lab) tempDir(name string) (string, error) {
	if err := os.Mkdir(l.temp(), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return os.MkdirTemp(l.temp(), name+"-")
}

// register has Close kill and reap a command that was started.
func (l *Lab) register(c *Cmd) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errors.New("the lab is closed")
	}
	if err := c.Cmd.Start(); err != nil {
		return err
	}
	l.cmds = append(l.cmds, c)
	return nil
}

// TB is the part of testing.TB that ForTest needs.
type TB interface {
	Helper()
	Cleanup(func())
	Context() context.Context
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// Environment variables about the tests that need root. Without either they
// are run as root and skipped otherwise.
const (
	RequireRoot = "HEADGATE_REQUIRE_ROOT" // 1: without root they fail
	SkipRoot    = "HEADGATE_SKIP_ROOT"    // 1: they are skipped even as root
)

// NeedRoot is for a test that needs root and no lab: it skips or fails it as
// [RequireRoot] and [SkipRoot] say.
func NeedRoot(tb TB) {
	tb.Helper()
	switch {
	case os.Getenv(SkipRoot) == "1":
		tb.Skipf("skipped: %s is set", SkipRoot)
	case os.Geteuid() == 0:
	case os.Getenv(RequireRoot) == "1":
		tb.Fatalf("not root, and %s is set", RequireRoot)
	default:
		tb.Skipf("skipped: needs root")
	}
}

// ForTest makes a lab that is closed when the test ends. It needs root, see
// [NeedRoot].
func ForTest(tb TB, names ...string) *Lab {
	tb.Helper()
	NeedRoot(tb)
	l, err := New(names...)
	if err != nil {
		tb.Fatalf("making a lab: %v", err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Errorf("closing the lab: %v", err)
		}
	})
	return l
}
