package e2e

import (
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/internal/lab/load"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/status"
)

// Two pods listen on the same port. One has more to do than it can, and one has
// not: each has a limit and counts of its own.
func TestPodsApart(t *testing.T) {
	const carries = 4 * float64(time.Second/work)
	l := lab.ForTest(t, "node", "one", "two")
	out, one, two := l.Host("node"), l.Host("one"), l.Host("two")
	api := serveAPI(t)
	spec := backend.Spec{Protocol: "http", Listen: []string{":8080"}, Workers: 4, Service: work, Contention: 0.5}
	var servers [2]*lab.Server
	for i, p := range []struct {
		host       *lab.Host
		name, kind string
	}{{one, "web-1", "systemd, containerd"}, {two, "web-2", "cgroupfs, CRI-O"}} {
		uid := newUID()
		_, servers[i] = startPod(t, p.host, uid, p.kind, spec)
		api.put("ADDED", apiPod{UID: uid, Namespace: "shop", Name: p.name, Labels: map[string]string{"app": "web"}})
		// A client on a tuple in TIME_WAIT is refused twice: TestTimeWaitTuple.
		if err := p.host.Sysctl("net.ipv4.tcp_max_tw_buckets", "0"); err != nil {
			t.Fatal(err)
		}
	}
	a := start(t, rules(podRule("web", "shop", "app=web", port)))
	awaitScopes(t, a, "pod:shop/web-1", "pod:shop/web-2")
	first, _ := targetIn(a, "pod:shop/web-1", port)

	var sent [2]load.Recorder
	var both sync.WaitGroup
	for i, rate := range []float64{5 * carries, 0.5 * carries} {
		host := []*lab.Host{one, two}[i]
		both.Go(func() {
			err := out.Do(func() error {
				return load.Run(t.Context(), load.Config{
					Target:   netip.AddrPortFrom(host.Addr4, port),
					Arrivals: load.Poisson(1, load.Step{Rate: rate, For: 3 * time.Second}),
					Request:  load.Get("/"),
					Timeout:  5 * time.Second,
				}, sent[i].Record)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	var got [2]status.Target
	for i, scope := range []string{"pod:shop/web-1", "pod:shop/web-2"} {
		await(t, scope+" is at rest", func() (any, bool) {
			got[i], _ = targetIn(a, scope, port)
			return got[i], got[i].InFlight == 0
		})
		counts := sent[i].Counts()
		seen, err := servers[i].Stats()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: limit %d, at first %d; %+v; the server %+v", scope, got[i].Limit, first.Limit, counts, seen)
		if counts.Unsent > 0 || counts.Reset > 0 || counts.TimedOut > 0 || counts.Failed > 0 {
			t.Errorf("%s: not only answered or refused: %+v", scope, counts)
		}
		if n := got[i].AdmittedTotal; n != counts.Answered || n != seen.Conns || n != got[i].FinishedTotal {
			t.Errorf("%s: %d admitted, %d finished; the clients have %d answers, the server %d connections",
				scope, n, got[i].FinishedTotal, counts.Answered, seen.Conns)
		}
		if n := got[i].RejectedTotal.Limit; n != counts.Refused {
			t.Errorf("%s: %d rejected; %d clients were refused", scope, n, counts.Refused)
		}
	}
	if got[0].Limit >= first.Limit || got[0].RejectedTotal.Limit == 0 {
		t.Errorf("the limit of the overloaded pod is %d, and was %d: it has to fall", got[0].Limit, first.Limit)
	}
	if got[1].Limit < first.Limit || got[1].RejectedTotal.Limit > 0 {
		t.Errorf("the limit of the other pod is %d, and was %d, with %d rejected", got[1].Limit, first.Limit, got[1].RejectedTotal.Limit)
	}
}

// Pods come and go, in whatever way a kubelet names them.
func TestPodsFollowed(t *testing.T) {
	l := lab.ForTest(t, "node", "one", "two", "three", "four")
	api := serveAPI(t)
	a := start(t, rules(podRule("web", "shop", "app=web", port)))
	awaitScopes(t, a)
	spec := backend.Spec{Protocol: "line", Listen: []string{":8080"}}
	labels := map[string]string{"app": "web"}
	var pods []apiPod
	var all [][2]*lab.Server
	for i, kind := range []string{"systemd, containerd", "systemd, CRI-O", "cgroupfs, containerd", "cgroupfs, CRI-O"} {
		h := l.Host([]string{"one", "two", "three", "four"}[i])
		pod := apiPod{UID: newUID(), Namespace: "shop", Name: h.Name, Labels: labels}
		pods = append(pods, pod)
		pause, server := startPod(t, h, pod.UID, kind, spec)
		all = append(all, [2]*lab.Server{pause, server})
		if i < 3 {
			api.put("ADDED", pod)
		}
	}
	pods[3].Namespace = "other"
	api.put("ADDED", pods[3])
	awaitScopes(t, a, "pod:shop/one", "pod:shop/three", "pod:shop/two")
	setLimit(t, a, "pod:shop/three/8080", 1)
	to := netip.AddrPortFrom(l.Host("three").Addr4, port)
	kept := dial(t, l.Host("node"), to)
	if !knock(t, l.Host("node"), to) {
		t.Error("admitted over the limit")
	}
	dial(t, l.Host("node"), netip.AddrPortFrom(l.Host("two").Addr6, port))

	// A container that is made anew is in the same pod.
	if err := all[2][1].Stop(); err != nil {
		t.Fatal(err)
	}
	kept.Close()
	if _, err := l.Host("three").StartServer(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	// A label that goes takes the protection with it, and a pod that ends too.
	relabelled := pods[1]
	relabelled.Labels = nil
	api.put("DELETED", pods[1]) // as a watch with a selector says it
	for _, s := range all[0] {
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	begun := time.Now()
	awaitScopes(t, a, "pod:shop/three")
	t.Logf("gone after %v", time.Since(begun))
	if st, _ := targetIn(a, "pod:shop/three", port); st.AdmittedTotal != 1 || st.Limit != 1 {
		t.Errorf("the pod whose container was made anew: %+v", st)
	}
	api.put("ADDED", pods[1])
	awaitScopes(t, a, "pod:shop/three", "pod:shop/two")
	if st, _ := targetIn(a, "pod:shop/two", port); st.InFlight != 1 {
		t.Errorf("a pod that is protected again has %d in flight, want 1: %+v", st.InFlight, st)
	}
	if reasons := a.NotReady(); len(reasons) > 0 {
		t.Errorf("not ready: %v", reasons)
	}
}

// A pod's annotations stand in for the rule; what is wrong with them is no
// matter to others.
func TestPodAnnotations(t *testing.T) {
	l := lab.ForTest(t, "node", "one", "two", "three")
	api := serveAPI(t)
	r := podRule("any", "", "")
	r.Scope.Pods.Annotations = true
	for name, annotations := range map[string]map[string]string{
		"one":   {"headgate.io/port": "8080, 8081", "headgate.io/limit": "2", "headgate.io/mode": "observe"},
		"two":   {"headgate.io/port": "8080", "headgate.io/limit": "gradient3", "headgate.io/prt": "1"},
		"three": {"example.org/port": "8080"},
	} {
		uid := newUID()
		startPod(t, l.Host(name), uid, "systemd, containerd", backend.Spec{Protocol: "line", Listen: []string{":8080"}})
		api.put("ADDED", apiPod{UID: uid, Namespace: "shop", Name: name, Annotations: annotations})
	}
	a := start(t, rules(r))
	awaitScopes(t, a, "pod:shop/one", "pod:shop/one")
	st, ok := targetIn(a, "pod:shop/one", 8081)
	if !ok || st.Limit != 2 || st.Algorithm != "fixed" || st.Mode != "observe" {
		t.Errorf("as annotated: %+v", st)
	}
	awaitLeft(t, a, "pod:shop/two", `headgate.io/limit: "gradient3" is not one of`)
	awaitLeft(t, a, "pod:shop/two", `headgate.io/prt: unknown annotation; did you mean port?`)
}

// Where there is no API, and where it does not answer.
func TestPodsWithoutAPI(t *testing.T) {
	lab.NeedRoot(t)
	t.Setenv("HEADGATE_KUBERNETES_API", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := agent.Start(rules(podRule("web", "shop", "", port)), "test", discard())
	if err == nil || !strings.Contains(err.Error(), "known to the Kubernetes API alone, and there is none") {
		t.Errorf("without an API: %v", err)
	}
	l := lab.ForTest(t, "one")
	uid := newUID()
	startPod(t, l.Host("one"), uid, "systemd, CRI-O", backend.Spec{Protocol: "line", Listen: []string{":8080"}})
	r := podRule("all", "", "", port)
	r.Mode = config.ModeObserve // there may be pods of others
	a := start(t, rules(r))
	await(t, "a pod by its UID", func() (any, bool) {
		_, ok := targetIn(a, "pod:"+uid, port)
		return a.Status().Targets, ok
	})
	if err := a.Remove(); err != nil {
		t.Fatal(err)
	}

	// What is named holds all the same.
	t.Setenv("HEADGATE_KUBERNETES_API", "http://127.0.0.1:1")
	t.Setenv("HEADGATE_NODE", node)
	begun := time.Now()
	a = start(t, rules(rule(l.Host("one"), "named", port, fixed(1)), podRule("web", "shop", "", port)))
	if took := time.Since(begun); took > 8*time.Second {
		t.Errorf("the start took %v", took)
	}
	if n := len(a.Status().Targets); n != 1 {
		t.Errorf("%d targets, want that with a name", n)
	}
	if reasons := a.NotReady(); len(reasons) != 1 || !strings.Contains(reasons[0], "rule web: pods:shop: ask the Kubernetes API") {
		t.Errorf("not ready: %q", reasons)
	}
}

// What is in a rule comes before what is found.
func TestPodsInANamedNamespace(t *testing.T) {
	l := lab.ForTest(t, "node", "one")
	api := serveAPI(t)
	uid := newUID()
	startPod(t, l.Host("one"), uid, "systemd, containerd", backend.Spec{Protocol: "line", Listen: []string{":8080"}})
	api.put("ADDED", apiPod{UID: uid, Namespace: "shop", Name: "one"})
	named := rule(l.Host("one"), "named", port, fixed(1))
	a := start(t, rules(podRule("web", "shop", "", port, another), named))
	await(t, "two targets", func() (any, bool) { return a.Status().Targets, len(a.Status().Targets) == 2 })
	if st := targetOf(t, a, "named"); st.Port != port {
		t.Errorf("%+v", st)
	}
	if st := targetOf(t, a, "web"); st.Port != another || st.Scope != "pod:shop/one" {
		t.Errorf("%+v", st)
	}
	awaitLeft(t, a, "pod:shop/one", "rule named protects the port already")
	reload(t, a, rules(podRule("web", "shop", "", port, another)))
	await(t, "all are the pod's", func() (any, bool) {
		st := a.Status()
		return st.Targets, len(st.Targets) == 2 && st.Targets[0].Scope == "pod:shop/one" && st.Targets[1].Scope == "pod:shop/one" && len(st.Unprotected) == 0
	})
	reload(t, a, rules(func() config.Rule { named.Ports = []uint16{port}; return named }()))
	if n := len(a.Status().Targets); n != 1 {
		t.Errorf("%d targets", n)
	}
}
