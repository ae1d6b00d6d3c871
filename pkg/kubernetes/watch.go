package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	pageSize  = 500
	maxAnswer = 256 << 20 // bytes of a page

	// A watch is begun anew after so long and up to twice that, as it may miss
	// nothing: it says where it was.
	watchTime = 5 * time.Minute

	firstDelay, lastDelay = 500 * time.Millisecond, 30 * time.Second
)

// Pod is what is known of a pod.
type Pod struct {
	Namespace, Name string

	// CgroupUID is the UID in the name of its cgroup: its own, or that of the
	// static pod which it mirrors.
	CgroupUID string

	// Annotations are those of headgate.
	Annotations map[string]string
}

// Watch follows which pods there are.
type Watch struct {
	api       *API
	namespace string
	labels    string
	log       *slog.Logger
	stop      context.CancelFunc
	ended     chan struct{}

	mu     sync.Mutex
	pods   map[string]Pod // by UID
	synced bool
	err    error // nil while all is well
}

// Watch begins to follow the pods of the node in a namespace, empty for all, that
// a label selector selects, empty for all.
func (a *API) Watch(namespace, labels string, log *slog.Logger) *Watch {
	ctx, stop := context.WithCancel(context.Background())
	w := &Watch{api: a, namespace: namespace, labels: labels, log: log, stop: stop, ended: make(chan struct{})}
	go w.run(ctx)
	return w
}

// Stop ends the watch.
func (w *Watch) Stop() {
	w.stop()
	<-w.ended
	w.api.client.CloseIdleConnections()
}

// Pods returns the pods as they are known, by namespace and name, and why nothing
// is known yet. Once something was, it is returned while the API cannot be
// reached, too.
func (w *Watch) Pods() ([]Pod, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.synced {
		if w.err == nil {
			return nil, errors.New("the Kubernetes API has not answered yet")
		}
		return nil, w.err
	}
	return slices.SortedFunc(maps.Values(w.pods), func(a, b Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	}), nil
}

// Synced says whether the pods were known at some time.
func (w *Watch) Synced() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.synced
}

func (w *Watch) run(ctx context.Context) {
	defer close(w.ended)
	version, delay := "", firstDelay
	for ctx.Err() == nil {
		var err error
		begun := time.Now()
		if version == "" {
			version, err = w.list(ctx)
		}
		if err == nil {
			w.note(nil)
			version, err = w.follow(ctx, version)
		}
		if ctx.Err() != nil {
			return
		}
		w.note(err)
		if err == nil && time.Since(begun) > firstDelay || time.Since(begun) > lastDelay {
			delay = firstDelay
			if err == nil {
				continue
			}
		}
		// All nodes are refused at once when the API restarts: not all of them
		// come again at once.
		select {
		case <-ctx.Done():
		case <-time.After(delay/2 + rand.N(delay)):
		}
		delay = min(2*delay, lastDelay)
	}
}

// note logs trouble when it begins and when it is over.
func (w *Watch) note(err error) {
	w.mu.Lock()
	was := w.err
	w.err = err
	w.mu.Unlock()
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		w.log.Error("pods are not followed; those that are known stay protected", "error", err)
	case err == nil && was != nil:
		w.log.Info("pods are followed again")
	}
}

// object is the part of a pod that is of interest, or of an error.
type object struct {
	Metadata struct {
		Name            string            `json:"name"`
		Namespace       string            `json:"namespace"`
		UID             string            `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
	} `json:"metadata"`
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (o *object) pod() Pod {
	m := &o.Metadata
	p := Pod{Namespace: m.Namespace, Name: m.Name, CgroupUID: m.UID, Annotations: make(map[string]string)}
	if hash := m.Annotations["kubernetes.io/config.mirror"]; hash != "" {
		p.CgroupUID = hash
	}
	for key, text := range m.Annotations {
		if strings.HasPrefix(key, "headgate.io/") {
			p.Annotations[key] = text
		}
	}
	return p
}

func (w *Watch) query() url.Values {
	q := url.Values{}
	if w.labels != "" {
		q.Set("labelSelector", w.labels)
	}
	return q
}

// list learns of all pods, and returns the version that this is.
func (w *Watch) list(ctx context.Context) (version string, err error) {
	pods := make(map[string]Pod)
	for next := ""; ; {
		q := w.query()
		q.Set("limit", strconv.Itoa(pageSize))
		if next != "" {
			q.Set("continue", next)
		}
		var page struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
				Continue        string `json:"continue"`
			} `json:"metadata"`
			Items []object `json:"items"`
		}
		resp, err := w.api.get(ctx, w.namespace, q, "PartialObjectMetadataList")
		if err != nil {
			return "", err
		}
		err = json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&page)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return "", fmt.Errorf("list of pods: %w", err)
		}
		for i := range page.Items {
			pods[page.Items[i].Metadata.UID] = page.Items[i].pod()
		}
		version, next = page.Metadata.ResourceVersion, page.Metadata.Continue
		if next == "" {
			break
		}
	}
	w.mu.Lock()
	w.pods, w.synced = pods, true
	w.mu.Unlock()
	return version, nil
}

// follow takes in what happens after a version, and returns how far it came; empty
// when all has to be listed again.
func (w *Watch) follow(ctx context.Context, version string) (string, error) {
	q := w.query()
	q.Set("watch", "true")
	q.Set("allowWatchBookmarks", "true")
	q.Set("resourceVersion", version)
	q.Set("timeoutSeconds", strconv.Itoa(int((watchTime + rand.N(watchTime)).Seconds())))
	resp, err := w.api.get(ctx, w.namespace, q, "PartialObjectMetadata")
	if s := (*statusError)(nil); errors.As(err, &s) && s.code == http.StatusGone {
		return "", nil // too long ago
	}
	if err != nil {
		return version, err
	}
	defer resp.Body.Close()
	events := json.NewDecoder(resp.Body)
	for {
		var e struct {
			Type   string `json:"type"`
			Object object `json:"object"`
		}
		err := events.Decode(&e)
		if errors.Is(err, io.EOF) {
			return version, nil // its time was over
		}
		if err != nil {
			return version, fmt.Errorf("watch of pods: %w", err)
		}
		switch e.Type {
		case "ADDED", "MODIFIED", "DELETED":
			w.take(e.Type == "DELETED", &e.Object)
		case "BOOKMARK":
		case "ERROR":
			if e.Object.Code == http.StatusGone {
				return "", nil
			}
			return "", &statusError{e.Object.Code, e.Object.Message}
		default:
			return "", fmt.Errorf("watch of pods: an event of the type %.40q", e.Type)
		}
		version = e.Object.Metadata.ResourceVersion
	}
}

func (w *Watch) take(deleted bool, o *object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if deleted {
		delete(w.pods, o.Metadata.UID)
	} else {
		w.pods[o.Metadata.UID] = o.pod()
	}
}

// reasonIn reads why a request was refused.
func reasonIn(body io.Reader) string {
	text, err := io.ReadAll(io.LimitReader(body, 4096))
	if err != nil {
		return err.Error()
	}
	var o object
	if json.Unmarshal(text, &o) == nil && o.Message != "" {
		return o.Message
	}
	return fmt.Sprintf("%.200q", text)
}
