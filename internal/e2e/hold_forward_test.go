package e2e

import (
	"errors"
	"io/fs"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"headgate/internal/lab"
	"headgate/pkg/config"
)

// What a host only forwards is not for its ports: it is neither counted nor
// held nor dropped.
func TestForwardedNotHeld(t *testing.T) {
	for name, set := range map[string]func(*config.Rule){
		"hold": holding(1, time.Minute),
		"drop": func(r *config.Rule) { fixed(1)(r); r.Reject = config.RejectDrop },
		"pace": paced(1, time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			l := lab.ForTest(t, "mid", "srv", "cli")
			mid, srv, cli := l.Host("mid"), l.Host("srv"), l.Host("cli")
			keep(t, mid, "tcp", ":8080")
			k := keep(t, srv, "tcp", ":8080")
			a := startHolding(t, mid, set)
			for _, addr := range []netip.Addr{srv.Addr4, srv.Addr6} {
				c := newCrowd(t, cli, netip.AddrPortFrom(addr, port), 10)
				c.wait(t, time.Second)
				if len(c.connected) != 10 {
					t.Errorf("through the host: %v", c)
				}
				c.close()
			}
			k.closeAll()
			if st := target(a); st.AdmittedTotal+st.HeldTotal != 0 || st.Pending != 0 || rejectedInAll(st) != 0 {
				t.Errorf("counted: %+v", st)
			}
			if n := queued(t, mid); n != 0 {
				t.Errorf("%d packets were queued", n)
			}
		})
	}
}

// What a host only carries over a bridge is not for its ports either, whether it
// forwards packets or not.
func TestBridgedNotHeld(t *testing.T) {
	for _, forwarding := range []string{"0", "1"} {
		t.Run("forwarding "+forwarding, func(t *testing.T) {
			l := lab.ForTest(t, "mid", "srv", "cli")
			mid, srv, cli := l.Host("mid"), l.Host("srv"), l.Host("cli")
			for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
				if err := mid.Sysctl(key, forwarding); err != nil {
					t.Fatal(err)
				}
			}
			// Where this is on, a packet that is marked on the bridge's own device has
			// passed netfilter before.
			if err := mid.Sysctl("net.bridge.bridge-nf-call-iptables", forwarding); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			// Both get an address in a network that they share over the bridge.
			bridge(t, mid, "srv", "cli")
			for n, h := range []*lab.Host{srv, cli} {
				a4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 84, 0, byte(n + 1)}), 24)
				a6 := netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x84, 15: byte(n + 1)}), 64)
				if err := h.AddAddr("mid", a4, a6); err != nil {
					t.Fatal(err)
				}
			}
			keep(t, mid, "tcp", ":8080")
			k := keep(t, srv, "tcp", ":8080")
			a := startHolding(t, mid, holding(1, time.Minute))
			for _, addr := range []string{"10.84.0.1", "fd84::1"} {
				c := newCrowd(t, cli, netip.AddrPortFrom(netip.MustParseAddr(addr), port), 10)
				c.wait(t, time.Second)
				if len(c.connected) != 10 {
					t.Errorf("over the bridge: %v", c)
				}
				c.close()
			}
			k.closeAll()
			if st := target(a); st.AdmittedTotal+st.HeldTotal != 0 || st.Pending != 0 || rejectedInAll(st) != 0 {
				t.Errorf("counted: %+v", st)
			}
			// What is for the bridge itself is counted.
			to := netip.MustParseAddrPort("10.84.0.3:8080")
			dial(t, cli, to)
			awaitUnits(t, 1, 0)
			c := newCrowd(t, cli, to, 3)
			awaitUnits(t, 1, 3)
			c.close()
		})
	}
}

// bridge joins devices of a host by a bridge, which has addresses.
func bridge(t *testing.T, h *lab.Host, ports ...string) {
	t.Helper()
	err := h.Do(func() error {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		if err := netlink.LinkAdd(br); err != nil {
			return err
		}
		for _, name := range ports {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetMaster(l, br); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(br)
	})
	if err == nil {
		err = h.AddAddr("br0", netip.MustParsePrefix("10.84.0.3/24"), netip.MustParsePrefix("fd84::3/64"))
	}
	if err != nil {
		t.Fatal(err)
	}
}
