package e2e

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/internal/lab/load"
	"headgate/pkg/config"
)

// What the keys of a rule say of its limit, on ports of one server that are all
// asked the same over the same long way: a round trip takes 40 ms, the server
// 15 ms for each of two requests, and the client keeps the connection for both.
// All the limits follow something that must not take longer than 30 ms.
func TestKeysOfTheLimit(t *testing.T) {
	const initial = 10
	keys := []struct {
		rule  string // what follows the port
		least int    // the limit in the end
		most  int
	}{
		{"signal: service", initial, 10 * initial},
		{"signal: rtt", 1, initial / 2},
		{"signal: connection", 1, initial / 2},
		{"signal: connection, limit: {min: 4}", 4, 4},
		{"signal: service, limit: {initial: 3, max: 5}", 5, 5},
		{"signal: connection, warm_up: 1h", initial, initial},
	}
	w := wired(t, func(f *lab.Frame) {
		if _, ok := f.Segment(); ok {
			f.Delay(20 * time.Millisecond)
		}
	})
	srv, cli := w.A.Host, w.B.Host
	text := bytes.NewBufferString("defaults:\n  mode: enforce\n  limit: {algorithm: aimd, initial: 10, min: 1, backoff_ratio: 0.5, timeout: 30ms}\nrules:\n")
	for i, key := range keys {
		p := uint16(port + i)
		serveAt(t, srv, p, backend.Spec{Protocol: "http", Service: 15 * time.Millisecond})
		fmt.Fprintf(text, "  - {name: r%d, port: %d, scope: {netns: %s}, %s}\n", i, p, srv.NetNS, key.rule)
	}
	cfg, err := config.Parse(text.Bytes(), config.Input{})
	if err != nil {
		t.Fatal(err)
	}
	cfg.State, cfg.Lease = stateDir(), lab.Allow(cfg.Lease)
	a := start(t, cfg)

	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			get := load.Turn{Send: []byte("GET / HTTP/1.1\r\nHost: lab\r\n\r\n"), Begin: "HTTP/1.1 200", End: "\nok\n"}
			err := cli.Do(func() error {
				return load.Run(t.Context(), load.Config{
					Target:   netip.AddrPortFrom([]netip.Addr{w.A.Addr4, w.A.Addr6}[i%2], uint16(port+i)),
					Arrivals: load.Poisson(uint64(i), load.Step{Rate: 150, For: 3500 * time.Millisecond}),
					Turns:    []load.Turn{get, get},
					Timeout:  patience,
				}, func(load.Result) {})
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i, key := range keys {
		st := targetOf(t, a, fmt.Sprint("r", i))
		t.Logf("%s: limit %d, %d admitted, %d rejected, %+v", key.rule, st.Limit, st.AdmittedTotal, st.RejectedTotal.Limit, st.Window)
		if st.Limit < key.least || st.Limit > key.most {
			t.Errorf("%s: the limit is %d, want %d to %d", key.rule, st.Limit, key.least, key.most)
		}
	}
}
