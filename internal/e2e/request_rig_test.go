package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/agent"
	"headgate/pkg/config"
)

// requests is a limit of requests; who finds it reached waits.
func requests(limit int) func(*config.Rule) {
	return func(r *config.Rule) {
		holding(limit, 20*time.Second)(r)
		r.Unit = config.UnitRequest
	}
}

// begin starts an agent that the caller stops or removes.
func begin(t *testing.T, h *lab.Host, set func(*config.Rule)) *agent.Agent {
	t.Helper()
	a, err := agent.Start(configFor(h, port, set), "test", slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatalf("start the agent: %v", err)
	}
	return a
}

// contended is a server that ten requests at once use to the full, and that
// each further ten inside make slower by its service time once more.
func contended(protocol string) backend.Spec {
	return backend.Spec{Protocol: protocol, Workers: 10, Service: work, Contention: 1}
}

// serve starts a server on the port of these tests.
func serve(t *testing.T, h *lab.Host, spec backend.Spec) *lab.Server {
	t.Helper()
	return serveAt(t, h, port, spec)
}

func serveAt(t *testing.T, h *lab.Host, port uint16, spec backend.Spec) *lab.Server {
	t.Helper()
	spec.Listen = []string{fmt.Sprintf(":%d", port)}
	s, err := h.StartServer(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// mostInside is how many requests a server had inside at once since the last
// call.
func mostInside(t *testing.T, s *lab.Server) int {
	t.Helper()
	st, err := s.Stats()
	if err == nil {
		err = s.ResetPeak()
	}
	if err != nil {
		t.Fatal(err)
	}
	return st.MaxInside
}

// aGet asks over HTTP, and keeps the connection.
const aGet = "GET / HTTP/1.1\r\nHost: test\r\n\r\n"

// askers are clients with one connection each, which they keep. Each asks again
// when it has its answer.
type askers struct {
	n    int
	from *lab.Host
	to   netip.AddrPort
	tls  *tls.Config
	ask  string                    // "": aGet
	read func(*bufio.Reader) error // nil: an HTTP response

	greeting func(*bufio.Reader) error // of a server that speaks first; or nil
	each     int                       // how often each asks; 0: for as long as time is
}

// answers are what they got in time, and what went wrong at any time.
type answers struct {
	count  int
	rate   float64 // a second
	waits  []time.Duration
	failed []error
}

// dial opens the connections; they are closed with the test.
func (a askers) dial(t *testing.T) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, a.n)
	for i := range conns {
		conns[i] = dial(t, a.from, a.to)
		if a.tls != nil {
			conns[i] = tls.Client(conns[i], a.tls)
		}
	}
	return conns
}

// run has them ask for a time, of which the first fifth is not counted, and
// waits for their last answers. Of those who ask a number of times, all that
// they get in that time is counted, and how long it took.
func (a askers) run(t *testing.T, d time.Duration) answers {
	t.Helper()
	conns := a.dial(t)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	return a.drive(conns, d)
}

// drive is run on connections that are open, and stay so.
func (a askers) drive(conns []net.Conn, d time.Duration) answers {
	from := time.Now()
	end := from.Add(d)
	if a.each == 0 {
		from = from.Add(d / 5)
	}
	var got answers
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, c := range conns {
		all.Go(func() {
			waits, err := a.talk(c, from, end)
			mu.Lock()
			defer mu.Unlock()
			got.waits = append(got.waits, waits...)
			if err != nil {
				got.failed = append(got.failed, err)
			}
		})
	}
	all.Wait()
	if a.each > 0 {
		end = time.Now()
	}
	got.count = len(got.waits)
	got.rate = float64(got.count) / end.Sub(from).Seconds()
	return got
}

func (a askers) talk(c net.Conn, from, end time.Time) (waits []time.Duration, err error) {
	if err := c.SetDeadline(end.Add(30 * time.Second)); err != nil {
		return nil, err
	}
	in := bufio.NewReader(c)
	if err := a.greet(in); err != nil {
		return nil, err
	}
	for i := 1; ; i++ {
		asked := time.Now()
		if asked.After(end) || a.each > 0 && i > a.each {
			return waits, nil
		}
		if err := a.once(c, in); err != nil {
			return waits, fmt.Errorf("after %v: %w", time.Since(asked), err)
		}
		if now := time.Now(); now.After(from) && now.Before(end) {
			waits = append(waits, now.Sub(asked))
		}
	}
}

// greet reads what the server says first, if it does.
func (a askers) greet(in *bufio.Reader) error {
	if a.greeting == nil {
		return nil
	}
	return a.greeting(in)
}

// once asks and waits for the answer.
func (a askers) once(c net.Conn, in *bufio.Reader) error {
	ask, read := a.ask, a.read
	if ask == "" {
		ask = aGet
	}
	if read == nil {
		read = response
	}
	if _, err := io.WriteString(c, ask); err != nil {
		return err
	}
	return read(in)
}

// response reads one of HTTP.
func response(in *bufio.Reader) error {
	r, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", r.Status)
	}
	return nil
}

// line reads a reply of one line, which is no error of redis.
func line(in *bufio.Reader) error {
	l, err := in.ReadString('\n')
	if err == nil && strings.HasPrefix(l, "-") {
		err = fmt.Errorf("reply %q", l)
	}
	return err
}

// log says what they got.
func (got answers) log(t *testing.T, what string) {
	t.Helper()
	if got.count == 0 {
		t.Errorf("%s: no answers; %d failed: %v", what, len(got.failed), got.failed)
		return
	}
	t.Logf("%s: %.1f/s, p50 %v, p99 %v", what, got.rate, quantile(got.waits, 0.5), quantile(got.waits, 0.99))
}

// check says what went wrong: nothing may.
func (got answers) check(t *testing.T) {
	t.Helper()
	if len(got.failed) > 0 {
		t.Errorf("%d of the clients failed: %v", len(got.failed), got.failed[0])
	}
}
