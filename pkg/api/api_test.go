package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/crypto/bcrypt"

	"headgate/pkg/config"
	"headgate/pkg/events"
	"headgate/pkg/explain"
	"headgate/pkg/metrics"
	"headgate/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fakeAgent struct {
	notReady []string
	events   *events.Bus
}

func (fakeAgent) Status() status.Status {
	return status.Status{
		Version: "1.2.3", Mode: "enforce", LeaseSeconds: 3, Capabilities: map[string]bool{"tcx": true},
		Targets: []status.Target{
			{Rule: "shop", Port: 8080, Scope: "host", Unit: "connection", Limit: 57},
			{Rule: "blue", Port: 8080, Scope: "netns:/run/blue net", Unit: "connection", Limit: 3},
			{Rule: "blue", Port: 443, Scope: "netns:/run/blue net", Unit: "request", Limit: 3},
		},
	}
}

func (f fakeAgent) Snapshot() metrics.Snapshot { return metrics.Snapshot{Status: f.Status()} }
func (f fakeAgent) NotReady() []string         { return f.notReady }
func (f fakeAgent) Explain(scope string, port uint16) (*explain.Explanation, bool) {
	for _, t := range f.Status().Targets {
		if t.Port == port && t.Scope == scope {
			return explain.New(explain.Facts{Target: t}), true
		}
	}
	return nil, false
}
func (f fakeAgent) Events() *events.Bus { return f.events }

// serve runs a server on a port of its own until the test ends.
func serve(t *testing.T, src Source, webConfig string) string {
	t.Helper()
	s, err := Listen(&config.Config{Listen: "127.0.0.1:0", WebConfig: webConfig})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(src, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s.Addr().String()
}

// do makes one request and returns the answer and its body.
func do(t *testing.T, method, url string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func TestPaths(t *testing.T) {
	addr := serve(t, fakeAgent{}, "")
	for path, want := range map[string]string{
		"/":              `<a href="metrics">`,
		"/metrics":       "headgate_limit{port=\"8080\",rule=\"shop\",scope=\"host\",unit=\"connection\"} 57\n",
		"/healthz":       "the process is alive\n",
		"/readyz":        "ready\n",
		"/api/v1/status": `"limit": 57,`,
	} {
		resp, body := do(t, "GET", "http://"+addr+path)
		if resp.StatusCode != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
		resp, body = do(t, "HEAD", "http://"+addr+path)
		if resp.StatusCode != 200 || body != "" {
			t.Errorf("HEAD %s: %s %q", path, resp.Status, body)
		}
		for _, method := range []string{"POST", "PUT", "DELETE", "PATCH"} {
			if resp, _ := do(t, method, "http://"+addr+path); resp.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %s", method, path, resp.Status)
			}
		}
	}
	for _, path := range []string{"/x", "/api/v1/", "/metrics/x", "/debug/pprof/"} {
		if resp, _ := do(t, "GET", "http://"+addr+path); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	resp, body := do(t, "GET", "http://"+addr+"/metrics", "Accept", "application/openmetrics-text;version=1.0.0")
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/openmetrics-text") || !strings.HasSuffix(body, "# EOF\n") {
		t.Errorf("no OpenMetrics: %v", resp.Header)
	}
}

func TestNotReady(t *testing.T) {
	addr := serve(t, fakeAgent{notReady: []string{"the lease has lapsed", "sk_lookup is not attached"}}, "")
	resp, body := do(t, "GET", "http://"+addr+"/readyz")
	want := "not ready:\n- the lease has lapsed\n- sk_lookup is not attached\n"
	if resp.StatusCode != http.StatusServiceUnavailable || body != want {
		t.Errorf("%s %q", resp.Status, body)
	}
	if resp, _ := do(t, "GET", "http://"+addr+"/healthz"); resp.StatusCode != 200 {
		t.Errorf("not ready is not unhealthy: %s", resp.Status)
	}
}

func TestAddressInUse(t *testing.T) {
	addr := serve(t, fakeAgent{}, "")
	_, err := Listen(&config.Config{Listen: addr})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatal(err)
	}
	for _, want := range []string{addr, "the key listen", "--listen", "HEADGATE_LISTEN"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if _, err := Listen(&config.Config{Listen: "192.0.2.1:9464"}); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Error(err)
	}
}

// A server that never served, or is closed before, gives up its address.
func TestCloseWithoutServe(t *testing.T) {
	s, err := Listen(&config.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	addr := s.Addr().String()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Serve(fakeAgent{}, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
	again, err := Listen(&config.Config{Listen: addr})
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// What a client sends is bounded: its headers in size, its body is not read.
func TestInputIsBounded(t *testing.T) {
	addr := serve(t, fakeAgent{}, "")
	// The answer is 431, which a reset for what was not read may overtake.
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+addr+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Long", strings.Repeat("x", 64<<10))
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if resp, err := client.Do(req); err == nil {
		if resp.Body.Close(); resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("a header of 64 KiB: %s", resp.Status)
		}
	}

	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 1<<40); err != nil {
		t.Fatal(err)
	}
	sent, chunk := 0, make([]byte, 64<<10)
	for {
		n, err := c.Write(chunk)
		sent += n
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the server keeps the connection of a body without end")
			}
			break
		}
		if sent > 64<<20 {
			t.Fatalf("the server read %d bytes of a body", sent)
		}
	}
}

func TestWebConfig(t *testing.T) {
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(file, []byte("basic_auth_users: {joan: '"+string(hash)+"'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := serve(t, fakeAgent{}, file)
	if resp, _ := do(t, "GET", "http://"+addr+"/metrics"); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a password: %s", resp.Status)
	}
	if _, err := FetchStatus(t.Context(), addr); err == nil || !strings.Contains(err.Error(), "user and a password") {
		t.Error(err)
	}
	if _, err := FetchStatus(t.Context(), "http://joan:secret@"+addr); err != nil {
		t.Error(err)
	}

	if err := os.WriteFile(file, []byte("basic_auth: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(&config.Config{Listen: "127.0.0.1:0", WebConfig: file}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a wrong web configuration: %v", err)
	}
	if _, err := Listen(&config.Config{Listen: "127.0.0.1:0", WebConfig: file + "x"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no web configuration: %v", err)
	}
}

func TestFetchStatus(t *testing.T) {
	addr := serve(t, fakeAgent{}, "")
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{addr, ":" + port, "0.0.0.0:" + port, "localhost:" + port, "http://" + addr} {
		got, err := FetchStatus(t.Context(), a)
		if err != nil {
			t.Errorf("%s: %v", a, err)
			continue
		}
		if d := cmp.Diff(fakeAgent{}.Status(), *got); d != "" {
			t.Error(d)
		}
	}
}

func TestFetchStatusErrors(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := FetchStatus(t.Context(), nobody); !errors.Is(err, ErrNoAgent) ||
		err.Error() != "ask http://"+nobody+" for its status: no agent listens there; is headgate running? --listen or HEADGATE_LISTEN names another address" {
		t.Error(err)
	}
	_, err = FetchStatus(t.Context(), "http://joan:secret@"+nobody)
	if !errors.Is(err, ErrNoAgent) || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}

	for _, tt := range []struct {
		handler http.Handler
		want    string
	}{
		{answer(200, "hello"), "the answer is not that of an agent"},
		{answer(500, "oops"), `the answer is 500 Internal Server Error: "oops"`},
		{http.RedirectHandler("http://192.0.2.1/", http.StatusFound), "the answer is 302 Found"},
	} {
		s := httptest.NewServer(tt.handler)
		_, err := FetchStatus(t.Context(), s.Listener.Addr().String())
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %s", err, tt.want)
		}
		s.Close()
	}
	tls := httptest.NewUnstartedServer(answer(200, "{}"))
	tls.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	tls.StartTLS()
	defer tls.Close()
	if _, err := FetchStatus(t.Context(), tls.Listener.Addr().String()); err == nil || !strings.Contains(err.Error(), "the agent speaks TLS") {
		t.Error(err)
	}
	for _, addr := range []string{"", "localhost", "ftp://x", "http://", "http://a:b@%zz"} {
		if _, err := FetchStatus(t.Context(), addr); err == nil {
			t.Errorf("%q was accepted", addr)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := FetchStatus(ctx, "127.0.0.1:1"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func answer(code int, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { text(w, code, body) })
}

func TestStatusIsIndentedJSON(t *testing.T) {
	addr := serve(t, fakeAgent{}, "")
	resp, body := do(t, "GET", "http://"+addr+statusPath)
	if !json.Valid([]byte(body)) || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%v %s", resp.Header, body)
	}
}
