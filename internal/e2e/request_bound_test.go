package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"headgate/internal/lab"
	"headgate/pkg/config"
)

// The sockets of link-local clients are bound to a device, and found only with it.
func TestRequestsOfLinkLocalClients(t *testing.T) {
	dialLocal := func(t *testing.T, srv, cli *lab.Host) *net.TCPConn {
		t.Helper()
		addr, _ := linkLocal(t, srv, "cli")
		_, index := linkLocal(t, cli, "srv")
		// Numbers: names are kept by the standard library, for all namespaces.
		return dial(t, cli, netip.AddrPortFrom(addr.WithZone(fmt.Sprint(index)), port))
	}
	begin := func(t *testing.T, set func(*config.Rule)) *pair {
		t.Helper()
		p := connectPair(t, set, func(p *pair) *net.TCPConn { return dialLocal(t, p.srv, p.cli) })
		awaitUnits(t, 1, 1)
		return p
	}
	t.Run("wait for their turn", func(t *testing.T) {
		p := begin(t, func(*config.Rule) {})
		p.answer()
		p.finish()
		if st := target(p.agent); st.BypassedTotal != 0 {
			t.Errorf("%d bypassed", st.BypassedTotal)
		}
	})
	t.Run("end when they are idle", func(t *testing.T) {
		p := begin(t, func(r *config.Rule) { r.End.Idle = 50 * time.Millisecond })
		p.answer()
		p.finish()
	})
	t.Run("are reset when their time is over", func(t *testing.T) {
		p := begin(t, func(r *config.Rule) { r.Hold.MaxWait = 300 * time.Millisecond })
		p.ends(p.second, syscall.ECONNRESET)
		p.answer()
		empty(t, p.agent)
	})
}

// linkLocal is the IPv6 link-local address of a device, and the device's index.
func linkLocal(t *testing.T, h *lab.Host, device string) (addr netip.Addr, index int) {
	t.Helper()
	await(t, "a link-local address", func() (seen any, ok bool) {
		err := h.Do(func() error {
			l, err := netlink.LinkByName(device)
			if err != nil {
				return err
			}
			index = l.Attrs().Index
			addrs, err := netlink.AddrList(l, netlink.FAMILY_V6)
			for _, a := range addrs {
				if ip, _ := netip.AddrFromSlice(a.IP); strings.HasPrefix(ip.String(), "fe80:") && a.Flags&syscall.IFA_F_TENTATIVE == 0 {
					addr = ip
				}
			}
			return err
		})
		return err, addr.IsValid()
	})
	return addr, index
}
