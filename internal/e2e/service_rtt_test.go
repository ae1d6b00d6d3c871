package e2e

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/config"
	"headgate/pkg/loader"
)

// TestTCPRTT compares clients that send the next request at once with some
// that think for a while, in which their acknowledgement waits for the request
// to ride on.
func TestTCPRTT(t *testing.T) {
	const prompt, thinking, oneShot = 8080, 8081, 8082
	const think = 10 * time.Millisecond
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	ports := []uint16{prompt, thinking, oneShot}
	for _, port := range ports {
		httpServer(backend.Spec{Protocol: "http"})(t, srv, port)
	}
	a := startAgent(t, srv, 0, func(r *config.Rule) {
		fixed(1000)(r)
		r.Ports = ports
	})
	for range 3 {
		httpClient{path: "/"}.run(t, cli, netip.AddrPortFrom(srv.Addr4, prompt))
	}
	for range 3 {
		httpClient{path: "/", think: think}.run(t, cli, netip.AddrPortFrom(srv.Addr4, thinking))
	}
	httpClient{path: "/", oneShot: true, think: think}.run(t, cli, netip.AddrPortFrom(srv.Addr4, oneShot))

	at := measured(t, 0, loader.RTT).Quantile(0.5)
	thought := measured(t, 1, loader.RTT).Quantile(0.5)
	h := measured(t, 2, loader.Handshake)
	t.Logf("TCP round trip: p50 %v, of thinking clients %v; of handshakes %v", at, thought, h.Quantile(0.5))
	if thought < think/2 || at > thought/4 {
		t.Errorf("the round trip of clients that think for %v is %v, of others %v", think, thought, at)
	}
	if h.Count != asked {
		t.Errorf("%d handshakes of %d connections", h.Count, asked)
	}
	if h.Quantile(0.5) > think/4 {
		t.Errorf("the round trip of handshakes is %v: it has the clients' thinking in it", h.Quantile(0.5))
	}
	// Each response is acknowledged, and the server's FIN.
	for i, want := range []uint64{3 * (asked + 1), 3 * (asked + 1), 2 * asked} {
		await(t, fmt.Sprintf("%d round trips on port %d", want, ports[i]), func() (any, bool) {
			n := measured(t, i, loader.RTT).Count
			return n, n == want
		})
	}
	await(t, "the status has round trips", func() (any, bool) {
		st := a.Status().Targets[2].TCPRTTSeconds
		return st, st.HandshakeP50 > 0 && st.HandshakeP50 < think.Seconds()/4 && st.Min > 0 && st.P50 >= st.Min
	})
}

// TestSignalRTT has the limit follow TCP's round trips, of which the kernel tells
// each at once: as many of them as are seen later otherwise.
func TestSignalRTT(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	httpServer(backend.Spec{Protocol: "http"})(t, srv, 8080)
	startAgent(t, srv, 8080, func(r *config.Rule) {
		fixed(1000)(r)
		r.Signal = config.SignalRTT
	})
	to := netip.AddrPortFrom(srv.Addr4, 8080)
	const kept = 3 * (asked + 1)
	for range 3 {
		httpClient{path: "/"}.run(t, cli, to)
	}
	await(t, "round trips of kept connections", func() (any, bool) {
		n := measured(t, 0, loader.RTT).Count
		return n, n == kept
	})
	// It tells of one in a flight (rtt_seq in tcp_rtt_estimator), and a response
	// and the FIN behind it may be one.
	httpClient{path: "/", oneShot: true}.run(t, cli, to)
	await(t, "round trips of connections for one request each", func() (any, bool) {
		n := measured(t, 0, loader.RTT).Count - kept
		return n, n >= asked && n <= 2*asked
	})
}
