package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/control"
	"headgate/pkg/scope"
	"headgate/pkg/status"
)

// What follows a scope has to be there, or gone, within this.
const follows = 2 * time.Second

// nestedCgroup makes cgroups below that of a host, one in the other.
func nestedCgroup(t *testing.T, h *lab.Host, below string) *lab.Cgroup {
	t.Helper()
	var c *lab.Cgroup
	at := ""
	for name := range strings.SplitSeq(below, "/") {
		at = filepath.Join(at, name)
		var err error
		c, err = h.SubCgroup(at)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
	return c
}

// below is the path of a cgroup below the root of the hierarchy.
func below(t *testing.T, c *lab.Cgroup) string {
	t.Helper()
	root, err := scope.Cgroup2()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(strings.TrimPrefix(c.Path, root), "/")
}

// apiserver is as much of the Kubernetes API as tells which pods there are.
type apiserver struct {
	*httptest.Server
	mu      sync.Mutex
	pods    map[string]apiPod
	version int
	log     []apiEvent
	changed chan struct{} // closed with the next change
}

type apiPod struct {
	UID, Namespace, Name string
	Labels, Annotations  map[string]string
}

type apiEvent struct {
	version int
	typ     string
	pod     apiPod
}

// node is the name of the node of these tests.
const node = "node-1"

// serveAPI serves an API without pods, and has agents of this process ask it.
func serveAPI(t *testing.T) *apiserver {
	t.Helper()
	s := &apiserver{pods: make(map[string]apiPod), changed: make(chan struct{})}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	t.Setenv("HEADGATE_KUBERNETES_API", s.URL)
	t.Setenv("HEADGATE_NODE", node)
	return s
}

func (s *apiserver) put(typ string, p apiPod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.pods[p.UID] = p
	if typ == "DELETED" {
		delete(s.pods, p.UID)
	}
	s.log = append(s.log, apiEvent{s.version, typ, p})
	close(s.changed)
	s.changed = make(chan struct{})
}

func (p apiPod) object(version int) any {
	return map[string]any{"metadata": map[string]any{
		"uid": p.UID, "namespace": p.Namespace, "name": p.Name, "resourceVersion": fmt.Sprint(version),
		"labels": p.Labels, "annotations": p.Annotations,
	}}
}

func (s *apiserver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	namespace := ""
	if rest, ok := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/"); ok {
		namespace, _, _ = strings.Cut(rest, "/")
	}
	if !strings.HasSuffix(r.URL.Path, "/pods") || q.Get("fieldSelector") != "spec.nodeName="+node {
		http.Error(w, `{"message":"only pods of the node"}`, http.StatusForbidden)
		return
	}
	selected := func(p apiPod) bool {
		ok := namespace == "" || p.Namespace == namespace
		for label := range strings.SplitSeq(q.Get("labelSelector"), ",") {
			key, value, _ := strings.Cut(label, "=")
			ok = ok && (label == "" || p.Labels[key] == value)
		}
		return ok
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.Get("watch") == "" {
		items := []any{}
		for _, p := range s.pods {
			if selected(p) {
				items = append(items, p.object(s.version))
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"metadata": map[string]any{"resourceVersion": fmt.Sprint(s.version)}, "items": items,
		})
		return
	}
	var from int
	_, _ = fmt.Sscan(q.Get("resourceVersion"), &from)
	for {
		for _, e := range s.log {
			if e.version > from && selected(e.pod) {
				_ = json.NewEncoder(w).Encode(map[string]any{"type": e.typ, "object": e.pod.object(e.version)})
			}
		}
		from = s.version
		w.(http.Flusher).Flush()
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-r.Context().Done():
		}
		s.mu.Lock()
		if r.Context().Err() != nil {
			return
		}
	}
}

// newUID is that of a pod.
func newUID() string {
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", rand.Uint32(), rand.N(1<<16), rand.N(1<<12), rand.N(1<<12), rand.N(1<<48))
}

// The names of a container's cgroup, by the driver of the kubelet and by the
// runtime, of a UID and an ID.
var containers = map[string]func(uid, id string) string{
	"systemd, containerd": func(uid, id string) string {
		return "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/cri-containerd-" + id + ".scope"
	},
	"systemd, CRI-O": func(uid, id string) string {
		return "kubepods.slice/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/crio-" + id + ".scope/container"
	},
	"cgroupfs, containerd": func(uid, id string) string { return "kubepods/besteffort/pod" + uid + "/" + id },
	"cgroupfs, CRI-O":      func(uid, id string) string { return "kubepods/pod" + uid + "/crio-" + id },
}

// startPod has a host be a pod: a process that only keeps its namespace, and a
// server in a container of its own.
func startPod(t *testing.T, h *lab.Host, uid, kind string, spec backend.Spec) (pause, server *lab.Server) {
	t.Helper()
	name := containers[kind]
	pause, err := h.StartServerIn(t.Context(), nestedCgroup(t, h, name(uid, "0123456789abcdef")), backend.Spec{Protocol: "line", Listen: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	server, err = h.StartServerIn(t.Context(), nestedCgroup(t, h, name(uid, "fedcba9876543210")), spec)
	if err != nil {
		t.Fatal(err)
	}
	return pause, server
}

// podRule protects pods.
func podRule(name, namespace, labels string, ports ...uint16) config.Rule {
	r := config.DefaultRule()
	r.Name, r.Ports, r.Mode = name, ports, config.ModeEnforce
	r.Scope = config.Scope{Pods: config.Pods{Given: true, Namespace: namespace, Labels: labels}}
	return r
}

// targetIn is what the agent reports of a port of a scope.
func targetIn(a *agent.Agent, scope string, port uint16) (status.Target, bool) {
	for _, st := range a.Status().Targets {
		if st.Scope == scope && st.Port == port {
			return st, true
		}
	}
	return status.Target{}, false
}

// awaitScopes waits until just these have targets.
func awaitScopes(t *testing.T, a *agent.Agent, want ...string) {
	t.Helper()
	awaitFor(t, follows+time.Second, fmt.Sprint("targets in ", want), func() (any, bool) {
		var got []string
		for _, st := range a.Status().Targets {
			got = append(got, st.Scope)
		}
		return got, fmt.Sprint(got) == fmt.Sprint(want)
	})
}

// awaitLeft waits until the agent says that something is not protected, and why.
func awaitLeft(t *testing.T, a *agent.Agent, scope, reason string) {
	t.Helper()
	await(t, scope+" is not protected: "+reason, func() (any, bool) {
		all := a.Status().Unprotected
		for _, l := range all {
			if l.Scope == scope && strings.Contains(l.Reason, reason) {
				return all, true
			}
		}
		return all, false
	})
}

// setLimit sets a limit by hand.
func setLimit(t *testing.T, a *agent.Agent, target string, n int) {
	t.Helper()
	if _, err := a.SetLimit(control.Limit{Target: target, Limit: n}); err != nil {
		t.Fatal(err)
	}
}
