package e2e

import (
	"net/netip"
	"testing"
	"time"

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
