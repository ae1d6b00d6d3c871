package kubernetes

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// apiserver serves a list in pages of two, and whatever is sent to a watch.
type apiserver struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	items    []string // JSON
	version  string
	refuse   int
	requests []*http.Request
	watches  []string    // resourceVersion of each
	events   chan string // JSON; closed: the watch ends
}

func item(uid, name string, annotations string) string {
	return fmt.Sprintf(`{"kind":"PartialObjectMetadata","metadata":{"uid":%q,"name":%q,"namespace":"shop","resourceVersion":"7","annotations":{%s}},"spec":{"ignored":1}}`, uid, name, annotations)
}

func (s *apiserver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r)
	refuse, items, version := s.refuse, s.items, s.version
	q := r.URL.Query()
	if q.Get("watch") != "" {
		s.watches = append(s.watches, q.Get("resourceVersion"))
	}
	events := s.events
	s.mu.Unlock()
	if refuse != 0 {
		w.WriteHeader(refuse)
		fmt.Fprintf(w, `{"kind":"Status","message":"pods is forbidden","code":%d}`, refuse)
		return
	}
	if q.Get("watch") == "" {
		from, next := 0, ""
		fmt.Sscanf(q.Get("continue"), "from-%d", &from)
		page := items[from:]
		if len(page) > 2 {
			page, next = page[:2], fmt.Sprintf("from-%d", from+2)
		}
		fmt.Fprintf(w, `{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":%q,"continue":%q},"items":[%s]}`, version, next, strings.Join(page, ","))
		return
	}
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e, ok := <-events:
			if !ok {
				return
			}
			fmt.Fprintln(w, e)
			w.(http.Flusher).Flush()
		}
	}
}

func (s *apiserver) set(f func()) { s.mu.Lock(); defer s.mu.Unlock(); f() }

func serve(t *testing.T, tls bool) *apiserver {
	s := &apiserver{t: t, version: "100", events: make(chan string)}
	if tls {
		s.Server = httptest.NewTLSServer(s)
	} else {
		s.Server = httptest.NewServer(s)
	}
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

func env(all map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := all[name]; return v, ok }
}

func (s *apiserver) api(t *testing.T) *API {
	t.Helper()
	a, err := FromEnvironment(env(map[string]string{"HEADGATE_KUBERNETES_API": s.URL, "HEADGATE_NODE": "n1"}))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func names(w *Watch) string {
	pods, err := w.Pods()
	if err != nil {
		return "error: " + err.Error()
	}
	var all []string
	for _, p := range pods {
		text := p.Name + "=" + p.CgroupUID
		if len(p.Annotations) > 0 {
			js, _ := json.Marshal(p.Annotations)
			text += string(js)
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func awaitNames(t *testing.T, w *Watch, want string) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		got := names(w)
		if got == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("pods: %s; want %s", got, want)
		}
	}
}

func TestWatch(t *testing.T) {
	s := serve(t, false)
	s.items = []string{
		item("u1", "web-1", `"headgate.io/port":"8080","other":"x"`), item("u2", "web-2", ""), item("u3", "web-3", ""),
		item("u4", "static", `"kubernetes.io/config.mirror":"0123","kubernetes.io/config.hash":"0123"`),
	}
	w := s.api(t).Watch("shop", "app=web", slog.New(slog.NewTextHandler(t.Output(), nil)))
	defer w.Stop()
	awaitNames(t, w, `static=0123 web-1=u1{"headgate.io/port":"8080"} web-2=u2 web-3=u3`)
	s.set(func() {
		q := s.requests[0].URL.Query()
		want := url.Values{"fieldSelector": {"spec.nodeName=n1"}, "labelSelector": {"app=web"}, "limit": {"500"}}
		if s.requests[0].URL.Path != "/api/v1/namespaces/shop/pods" || q.Encode() != want.Encode() {
			t.Errorf("asked for %s", s.requests[0].URL)
		}
		if accept := s.requests[0].Header.Get("Accept"); !strings.HasPrefix(accept, "application/json;as=PartialObjectMetadataList;") {
			t.Errorf("asked for %q", accept)
		}
	})

	s.events <- `{"type":"DELETED","object":` + item("u2", "web-2", "") + `}`
	s.events <- `{"type":"MODIFIED","object":` + item("u1", "web-1", "") + `}`
	s.events <- `{"type":"ADDED","object":` + item("u5", "web-5", "") + `}`
	awaitNames(t, w, `static=0123 web-1=u1 web-3=u3 web-5=u5`)
	s.events <- `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"200"}}}`

	// The watch ends, and goes on where it was.
	s.set(func() { close(s.events); s.events = make(chan string) })
	s.events <- `{"type":"DELETED","object":` + item("u5", "web-5", "") + `}`
	awaitNames(t, w, `static=0123 web-1=u1 web-3=u3`)
	s.set(func() {
		if got := strings.Join(s.watches, " "); got != "100 200" {
			t.Errorf("watches from the versions %s", got)
		}
		s.items, s.version = s.items[:1], "300"
	})

	// It was too long ago: all is listed again.
	s.events <- `{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old resource version"}}`
	awaitNames(t, w, `web-1=u1{"headgate.io/port":"8080"}`)

	// The API is gone, and comes back; what was known stays.
	s.set(func() { s.refuse = http.StatusForbidden; close(s.events); s.events = make(chan string) })
	time.Sleep(100 * time.Millisecond)
	awaitNames(t, w, `web-1=u1{"headgate.io/port":"8080"}`)
	s.set(func() { s.refuse = 0 })
	s.events <- `{"type":"ADDED","object":` + item("u6", "web-6", "") + `}`
	awaitNames(t, w, `web-1=u1{"headgate.io/port":"8080"} web-6=u6`)
}

func TestWatchRefused(t *testing.T) {
	s := serve(t, false)
	s.refuse = http.StatusForbidden
	w := s.api(t).Watch("", "", slog.New(slog.NewTextHandler(t.Output(), nil)))
	defer w.Stop()
	awaitNames(t, w, "error: the Kubernetes API answers 403 Forbidden: pods is forbidden")
	if w.Synced() {
		t.Error("synced")
	}
	for _, garbage := range []string{"", "[]", "{", `{"type":"NONE","object":{}}`, `{"type":"ERROR","object":{"code":500,"message":"x"}}`} {
		s.set(func() { s.refuse = 0; s.items = []string{item("u1", "a", "")} })
		w := s.api(t).Watch("", "", slog.New(slog.DiscardHandler))
		awaitNames(t, w, "a=u1")
		if garbage != "" {
			s.events <- garbage
		}
		w.Stop()
	}
}

// In a pod: TLS, with the cluster's own certificate, and a token that is renewed.
func TestInCluster(t *testing.T) {
	s := serve(t, true)
	u, _ := url.Parse(s.URL)
	dir := t.TempDir()
	vars := map[string]string{"KUBERNETES_SERVICE_HOST": u.Hostname(), "KUBERNETES_SERVICE_PORT": u.Port()}
	try := func() (*API, error) { return fromEnvironment(env(vars), dir) }
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		want string
		then func()
	}{
		{"automountServiceAccountToken", func() { write("token", "one\n") }},
		{"certificate of the Kubernetes API", func() { write("ca.crt", "x") }},
		{"there is none in", func() {
			write("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
		}},
		{"HEADGATE_NODE", func() { vars["HEADGATE_NODE"] = "n1" }},
	} {
		if _, err := try(); err == nil || !strings.Contains(err.Error(), step.want) {
			t.Errorf("%v; want %s", err, step.want)
		}
		step.then()
	}
	a, err := try()
	if err != nil {
		t.Fatal(err)
	}
	w := a.Watch("", "", slog.New(slog.NewTextHandler(t.Output(), nil)))
	defer w.Stop()
	awaitNames(t, w, "")
	write("token", "two")
	s.set(func() { close(s.events); s.events = make(chan string) })
	s.events <- `{"type":"ADDED","object":` + item("u1", "a", "") + `}`
	awaitNames(t, w, "a=u1")
	s.set(func() {
		for i, want := range []string{"Bearer one", "Bearer one", "Bearer two"} {
			if got := s.requests[i].Header.Get("Authorization"); got != want {
				t.Errorf("request %d with %q, want %q", i, got, want)
			}
		}
	})

	if _, err := FromEnvironment(env(nil)); err != ErrNone {
		t.Errorf("%v, want %v", err, ErrNone)
	}
	if _, err := FromEnvironment(env(map[string]string{"HEADGATE_KUBERNETES_API": "ftp//x", "HEADGATE_NODE": "n"})); err == nil {
		t.Error("took something else for a URL")
	}
}
