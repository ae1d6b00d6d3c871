package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/pkg/config"
	"headgate/pkg/control"
	"headgate/pkg/status"
)

// fakeControl notes what it is told, and answers with err.
type fakeControl struct {
	mu   sync.Mutex
	told []any
	err  error
}

func (f *fakeControl) note(r any) (control.Answer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, r)
	return control.Answer{Targets: []status.Target{{Rule: "shop", Port: 8080}}}, f.err
}

func (f *fakeControl) SetLimit(r control.Limit) (control.Answer, error) { return f.note(r) }
func (f *fakeControl) SetModes(r control.Mode) (control.Answer, error)  { return f.note(r) }
func (f *fakeControl) SetExempt(r control.Exempt) (control.Answer, error) {
	return f.note(r)
}
func (f *fakeControl) Reload(r control.Reload) error {
	_, err := f.note(r)
	return err
}

// serveSocket serves a socket until the test ends, and returns where it is.
func serveSocket(t *testing.T, ctl Control, group string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run", "headgate.sock")
	s, err := ListenSocket(&config.Config{Socket: path, SocketGroup: group})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctl, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-served); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return path
}

func TestSocket(t *testing.T) {
	ctl := &fakeControl{}
	path := serveSocket(t, ctl, "")
	for name, want := range map[string]fs.FileMode{path: fs.ModeSocket | 0o660, filepath.Dir(path): fs.ModeDir | 0o755} {
		if info, err := os.Lstat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
	limit := control.Limit{Target: "8080", Limit: 5, ForSeconds: 0.5, Force: true}
	answer, err := SetLimit(t.Context(), path, limit)
	if err != nil || len(answer.Targets) != 1 || answer.Targets[0].Rule != "shop" {
		t.Errorf("%+v, %v", answer, err)
	}
	mode := control.Mode{Target: "shop", Mode: "observe"}
	if _, err := SetModes(t.Context(), path, mode); err != nil {
		t.Error(err)
	}
	exempt := control.Exempt{Target: "shop", Network: "10.0.0.0/8", Remove: true}
	if _, err := SetExempt(t.Context(), path, exempt); err != nil {
		t.Error(err)
	}
	if err := Reload(t.Context(), path, control.Reload{SSHPort: 22}); err != nil {
		t.Error(err)
	}
	if d := cmp.Diff([]any{limit, mode, exempt, control.Reload{SSHPort: 22}}, ctl.told); d != "" {
		t.Error(d)
	}
}

func TestSocketGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("takes root")
	}
	path := serveSocket(t, &fakeControl{}, "1234")
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if gid := info.Sys().(*syscall.Stat_t).Gid; gid != 1234 {
		t.Errorf("group %d", gid)
	}
	if _, err := ListenSocket(&config.Config{Socket: path + "2", SocketGroup: "no-such-group"}); err == nil {
		t.Error("a group that there is not was taken")
	}
}

// What the agent says against a request is what its client says, with a code of
// its own for each kind.
func TestSocketRefusals(t *testing.T) {
	ctl := &fakeControl{}
	path := serveSocket(t, ctl, "")
	for want, err := range map[int]error{
		404: fmt.Errorf("%w: x", control.ErrUnknown),
		409: fmt.Errorf("%w: x", control.ErrAmbiguous),
		403: fmt.Errorf("%w: x", control.ErrForce),
		400: fmt.Errorf("%w: x", control.ErrInvalid),
		422: errors.New("f.yaml:3:1: broken"),
	} {
		ctl.err = err
		if _, got := SetModes(t.Context(), path, control.Mode{}); got == nil || got.Error() != err.Error() {
			t.Errorf("%v, want %v", got, err)
		}
		resp, body := post(t, path, modePath, `{"mode": "observe"}`)
		if resp.StatusCode != want || !strings.Contains(body, err.Error()) {
			t.Errorf("%d %s, want %d", resp.StatusCode, body, want)
		}
	}
}

// post makes a request on a socket.
func post(t *testing.T, socket, path, body string) (*http.Response, string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://x"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

func TestSocketInput(t *testing.T) {
	ctl := &fakeControl{}
	path := serveSocket(t, ctl, "")
	for _, body := range []string{
		"", "{", "[]", `"x"`, `{"limit": "5"}`, `{"limit": 1e99}`, `{"unknown": 1}`, `{} {}`, "\xff\x00",
		`{"target": "` + strings.Repeat("x", maxControlBody) + `"}`,
	} {
		resp, answer := post(t, path, limitPath, body)
		if f := (failure{}); resp.StatusCode != http.StatusBadRequest || json.Unmarshal([]byte(answer), &f) != nil || f.Error == "" {
			t.Errorf("%.20q: %s %s", body, resp.Status, answer)
		}
	}
	if len(ctl.told) > 0 {
		t.Errorf("told: %v", ctl.told)
	}
	for _, p := range []string{"/", "/metrics", "/api/v1/x"} {
		if resp, _ := post(t, path, p, "{}"); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", p, resp.Status)
		}
	}
}

// What an agent finds in its socket after it hung is not done: who asked has been
// told that there was no answer.
func TestSocketTooLate(t *testing.T) {
	for after, want := range map[time.Duration]int{-time.Millisecond: http.StatusRequestTimeout, time.Minute: http.StatusOK} {
		ctl := &fakeControl{}
		path := serveSocket(t, ctl, "")
		req := httptest.NewRequest(http.MethodPost, "http://headgate"+limitPath, strings.NewReader(`{"target": "8080", "limit": 5}`))
		req.RequestURI = ""
		req.Header.Set(beginHeader, strconv.FormatInt(time.Now().Add(after).UnixMilli(), 10))
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if done := len(ctl.told) == 1; resp.StatusCode != want || done != (want == http.StatusOK) {
			t.Errorf("to be begun within %v: %s, told %v", after, resp.Status, ctl.told)
		}
	}
}

// Nothing can be changed by the address that everybody may reach.
func TestAddressChangesNothing(t *testing.T) {
	addr := serve(t, fakeAgent{}, "")
	for _, path := range []string{limitPath, modePath, exemptPath, reloadPath} {
		for _, method := range []string{"POST", "PUT", "DELETE", "GET"} {
			if resp, _ := do(t, method, "http://"+addr+path); resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %s", method, path, resp.Status)
			}
		}
	}
}

func TestSocketIsThere(t *testing.T) {
	path := serveSocket(t, &fakeControl{}, "")
	if _, err := ListenSocket(&config.Config{Socket: path}); !errors.Is(err, ErrSocketInUse) {
		t.Errorf("that of a living agent: %v", err)
	}
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := ListenSocket(&config.Config{Socket: stale})
	if err != nil {
		t.Fatalf("that of an agent that was killed: %v", err)
	}
	// Somebody puts his in its place: it is not ours to remove.
	if err := os.Remove(stale); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stale, []byte("his"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := ListenSocket(&config.Config{Socket: stale}); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file: %v", err)
	}
	if text, err := os.ReadFile(stale); string(text) != "his" {
		t.Errorf("the file is %q, %v", text, err)
	}
	if s, err := ListenSocket(&config.Config{Socket: config.SocketNone}); s != nil || err != nil || s.Close() != nil {
		t.Errorf("none: %v, %v", s, err)
	}
}

func TestNobodyOnSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "headgate.sock")
	_, err := SetLimit(t.Context(), path, control.Limit{Target: "8080"})
	if !errors.Is(err, ErrNoAgent) || !strings.Contains(err.Error(), "--socket") {
		t.Error(err)
	}
	l, err := net.Listen("unix", path) // which answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Reload(ctx, path, control.Reload{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
