package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/config"
)

// A pool of connections that are kept open and ask nothing holds more slots
// than the limit begins with. Others must get in all the same, whether the
// pool is older than the agent or not, and what the pool then asks is limited
// no more than what is new.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	const idle = 60
	for _, older := range []bool{true, false} {
		t.Run(fmt.Sprintf("older=%t", older), func(t *testing.T) {
			l := lab.ForTest(t, "srv", "cli")
			srv, cli := l.Host("srv"), l.Host("cli")
			backendFor(t, srv, backend.Spec{Protocol: "http", Listen: []string{":8080"}, Service: 5 * time.Millisecond})
			addr := netip.AddrPortFrom(srv.Addr4, 8080)
			pool := func(n int) {
				for range n {
					c := dial(t, cli, addr)
					get(t, c)
				}
			}
			if older {
				pool(idle)
			}
			a := startAgent(t, srv, 8080, func(r *config.Rule) {})
			if !older {
				// As fast as the limit lets them; a refused dial fails the test.
				for range idle {
					pool(1)
					time.Sleep(20 * time.Millisecond)
				}
			}
			time.Sleep(300 * time.Millisecond)
			for i := range 100 {
				c, err := cli.Dial(t.Context(), "tcp", addr.String())
				if err != nil {
					t.Fatalf("connect %d beside %d idle ones: %v; limit %d, in flight %d", i, idle, err, target(a).Limit, target(a).InFlight)
				}
				get(t, c)
				c.Close()
			}
			if st := target(a); st.InFlight < idle || st.RejectedTotal.Limit > 0 {
				t.Errorf("in flight %d, rejected %d; want at least the %d idle ones, and nobody rejected", st.InFlight, st.RejectedTotal.Limit, idle)
			}
		})
	}
}

func backendFor(t *testing.T, h *lab.Host, spec backend.Spec) {
	t.Helper()
	if _, err := h.StartServer(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
}

// get makes one request on a connection and reads the response.
func get(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: test\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}
