package packaging

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// nodeName is that of the node of these tests.
const nodeName = "node-1"

// apiServer is as much of a cluster's API server as agents may make use of: over
// TLS, it lets who has the service account's token list and watch pods, as far as
// the account's role goes.
type apiServer struct {
	host, port string
	account    string // directory: what a kubelet mounts of the service account

	token   string
	mu      sync.Mutex
	role    []rbacv1.PolicyRule
	pods    map[types.UID]*corev1.Pod
	log     []podEvent
	version int
	changed chan struct{} // closed with the next change
}

type podEvent struct {
	version int
	typ     watch.EventType
	pod     *corev1.Pod
}

// serveAPI serves an API in the node's network, to an account with a role.
func (n *node) serveAPI(t *testing.T, role []rbacv1.PolicyRule) *apiServer {
	t.Helper()
	s := &apiServer{
		account: t.TempDir(), token: "token-of-headgate", role: role,
		pods: make(map[types.UID]*corev1.Pod), changed: make(chan struct{}),
	}
	server := httptest.NewUnstartedServer(s)
	server.Listener.Close()
	var err error
	n.in(t, func() { server.Listener, err = net.Listen("tcp", "127.0.0.1:0") })
	if err != nil {
		t.Fatal(err)
	}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	s.host, s.port, err = net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(s.account, "token"), s.token)
	write(t, filepath.Join(s.account, "ca.crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	n.api = s
	return s
}

// allow changes what the account may do.
func (s *apiServer) allow(role []rbacv1.PolicyRule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.role = role
}

func (s *apiServer) put(typ watch.EventType, p *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	p = p.DeepCopy()
	p.ResourceVersion = strconv.Itoa(s.version)
	s.pods[p.UID] = p
	if typ == watch.Deleted {
		delete(s.pods, p.UID)
	}
	s.log = append(s.log, podEvent{s.version, typ, p})
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *apiServer) may(verb string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.role, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.APIGroups, "") && slices.Contains(r.Resources, "pods") && slices.Contains(r.Verbs, verb)
	})
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	verb := "list"
	if q.Get("watch") == "true" {
		verb = "watch"
	}
	rest, ofPods := strings.CutSuffix(r.URL.Path, "/pods")
	namespace, inNamespace := strings.CutPrefix(rest, "/api/v1/namespaces/")
	node, nodeErr := fields.ParseSelector(q.Get("fieldSelector"))
	label, labelErr := labels.Parse(q.Get("labelSelector"))
	switch {
	case r.Header.Get("Authorization") != "Bearer "+s.token:
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
		return
	case r.Method != http.MethodGet || !ofPods || !inNamespace && rest != "/api/v1" || !s.may(verb):
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden,
			fmt.Sprintf("pods is forbidden: User %q cannot %s resource %q", "system:serviceaccount:headgate:headgate", verb, r.URL.Path))
		return
	case nodeErr != nil || labelErr != nil || !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata"):
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, fmt.Sprint(nodeErr, labelErr, r.Header))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	selected := func(p *corev1.Pod) bool {
		return (!inNamespace || p.Namespace == namespace) && label.Matches(labels.Set(p.Labels)) &&
			node.Matches(fields.Set{"spec.nodeName": p.Spec.NodeName})
	}
	if verb == "list" {
		_ = json.NewEncoder(w).Encode(s.list(selected))
		return
	}
	from, err := strconv.Atoi(q.Get("resourceVersion"))
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	for {
		events, version, changed := s.since(from, selected)
		for _, e := range events {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": e.typ, "object": metadata(e.pod)})
		}
		from = version
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func metadata(p *corev1.Pod) metav1.PartialObjectMetadata {
	return metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"},
		ObjectMeta: p.ObjectMeta,
	}
}

func (s *apiServer) list(selected func(*corev1.Pod) bool) metav1.PartialObjectMetadataList {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := metav1.PartialObjectMetadataList{
		TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)},
		Items:    []metav1.PartialObjectMetadata{},
	}
	for _, p := range s.pods {
		if selected(p) {
			all.Items = append(all.Items, metadata(p))
		}
	}
	return all
}

// since returns what happened after a version, the version that is now, and what
// is closed when more has happened.
func (s *apiServer) since(version int, selected func(*corev1.Pod) bool) (events []podEvent, now int, changed chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.log {
		if e.version > version && selected(e.pod) {
			events = append(events, e)
		}
	}
	return events, s.version, s.changed
}
