package packaging

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
)

// follows is how soon an agent has to have noticed what comes or goes, and said so.
const follows = 3 * time.Second

// pod is a server of somebody else, on port 8080 of a network namespace and in a
// cgroup of its own.
type pod struct {
	*node
	cgroup string // directory
	once   sync.Once
	server *exec.Cmd
}

// hierarchy is where cgroup2 is.
func hierarchy() string {
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err == nil {
		return "/sys/fs/cgroup/unified"
	}
	return "/sys/fs/cgroup"
}

// startPod starts one in a cgroup, a path below the hierarchy's root.
func (n *node) startPod(t *testing.T, name, cgroup string) *pod {
	t.Helper()
	p := &pod{node: &node{netns: n.netns + "-" + name}, cgroup: filepath.Join(hierarchy(), cgroup)}
	run(t, "ip", "netns", "add", p.netns)
	t.Cleanup(func() { run(t, "ip", "netns", "del", p.netns) })
	run(t, "ip", "-n", p.netns, "link", "set", "lo", "up")
	if err := os.MkdirAll(p.cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	// A socket's cgroup is the one that the process was in when it made it.
	p.server = exec.Command("ip", "netns", "exec", p.netns, "sh", "-c", "read go; exec busybox nc -ll -p 8080 -e cat")
	stdin, err := p.server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.end(t) })
	write(t, filepath.Join(p.cgroup, "cgroup.procs"), strconv.Itoa(p.server.Process.Pid))
	if _, err := io.WriteString(stdin, "go\n"); err != nil {
		t.Fatal(err)
	}
	// Asked of the kernel: a connection would be counted.
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if strings.Contains(run(t, "ip", "netns", "exec", p.netns, "cat", "/proc/net/tcp", "/proc/net/tcp6"), ":1F90 ") {
			return p
		}
		if time.Now().After(deadline) {
			t.Fatalf("nobody listens in %s", p.netns)
		}
	}
}

// end kills all of a pod and removes its cgroup, and those above that are empty.
func (p *pod) end(t *testing.T) {
	p.once.Do(func() {
		if err := os.WriteFile(filepath.Join(p.cgroup, "cgroup.kill"), []byte("1"), 0o644); err != nil {
			t.Error(err)
		}
		_ = p.server.Wait()
		var err error
		for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if err = os.Remove(p.cgroup); !errors.Is(err, unix.EBUSY) {
				break
			}
		}
		if err != nil {
			t.Error(err)
		}
		for dir := filepath.Dir(p.cgroup); dir != hierarchy() && os.Remove(dir) == nil; dir = filepath.Dir(dir) {
		}
	})
}

// counts are those of a target.
type counts struct {
	Admitted, Refused, InFlight int
}

// status returns what the agent in a container has counted, by scope; nil as long
// as it does not answer.
func (c *container) status(t *testing.T) map[string]counts {
	t.Helper()
	out, err := exec.Command("runc", "--root", c.node.runc, "exec", c.id, "/usr/bin/headgate", "status", "-o", "json").Output()
	if err != nil {
		return nil
	}
	var s struct {
		Targets []struct {
			Scope    string
			InFlight int            `json:"in_flight"`
			Admitted int            `json:"admitted_total"`
			Rejected map[string]int `json:"rejected_total"`
		}
	}
	if err := json.Unmarshal(out, &s); err != nil {
		t.Fatalf("status: %v in\n%s", err, out)
	}
	all := make(map[string]counts)
	for _, target := range s.Targets {
		now := counts{Admitted: target.Admitted, InFlight: target.InFlight}
		for _, n := range target.Rejected {
			now.Refused += n
		}
		all[target.Scope] = now
	}
	return all
}

// await waits until the status is such.
func (c *container) await(t *testing.T, what string, such func(map[string]counts) bool) {
	t.Helper()
	begin, got := time.Now(), map[string]counts(nil)
	for time.Since(begin) < follows {
		if got = c.status(t); such(got) {
			t.Logf("%s: after %v", what, time.Since(begin).Round(time.Millisecond))
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%s: not so in %v: %v", what, follows, got)
}

// awaitTargets waits until just these scopes have targets.
func (c *container) awaitTargets(t *testing.T, scopes ...string) {
	t.Helper()
	c.await(t, "targets in "+strings.Join(scopes, ", "), func(s map[string]counts) bool {
		return len(s) == len(scopes) && !slices.ContainsFunc(scopes, func(scope string) bool { _, is := s[scope]; return !is })
	})
}

// says waits until an agent has logged a text.
func (c *container) says(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(read(t, c.log), text); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not say %q", text)
		}
	}
}

// agentOfPods is the pod of an agent with the overlay for pods, and its role.
func agentOfPods(t *testing.T) (*corev1.PodSpec, []rbacv1.PolicyRule) {
	t.Helper()
	all := kustomize(t, "kubernetes/overlays/pods")
	return &all["DaemonSet/headgate"].(*appsv1.DaemonSet).Spec.Template.Spec, all["ClusterRole/headgate"].(*rbacv1.ClusterRole).Rules
}

// remove takes out of the kernel what agents have left there.
func (n *node) remove(t *testing.T) {
	t.Helper()
	job := kustomize(t, "kubernetes/remove")["Job/headgate-remove"].(*batchv1.Job).Spec.Template.Spec
	if said, err := n.start(t, &job).wait(t); err != nil {
		t.Fatalf("remove: %v\n%s", err, said)
	}
}

// A pod's process is found and its namespace entered with what the overlay for
// pods adds, and not without.
func containerOfPods(t *testing.T, n *node) {
	name := fmt.Sprintf("headgate-image-%d.scope", os.Getpid())
	server := n.startPod(t, "pod", name)
	write(t, filepath.Join(n.config, "headgate.yaml"), `rules:
  - {name: web, port: 8080, limit: {algorithm: fixed, initial: 3}, scope: {cgroup: 'headgate-image-*.scope'}}
`)
	agent, _ := agentOfPods(t)
	c := n.start(t, agent)
	c.ready(t, &agent.Containers[0])
	c.awaitTargets(t, "cgroup:"+name)
	if got := admitted(t, server.node, 5); got != 3 {
		t.Errorf("of 5 connections %d were let in, want 3", got)
	}
	c.stop(t)
	n.remove(t)
	for _, missing := range []corev1.Capability{"SYS_ADMIN", "SYS_PTRACE"} {
		t.Run("without "+string(missing), func(t *testing.T) {
			less := agent.DeepCopy()
			caps := less.Containers[0].SecurityContext.Capabilities
			caps.Add = slices.DeleteFunc(caps.Add, func(c corev1.Capability) bool { return c == missing })
			n.start(t, less).says(t, "CAP_"+string(missing))
		})
	}
}

// Pods that listen on the same port are found by the API server of their cluster,
// with the rights of the overlay's role and no others, and have counts of their
// own, which an update of the agent keeps.
func containerOfCluster(t *testing.T, n *node) {
	write(t, filepath.Join(n.config, "headgate.yaml"), `rules:
  - {name: web, port: 8080, limit: {algorithm: fixed, initial: 3}, scope: {pods: {namespace: shop, labels: {app: web}}}}
`)
	agent, role := agentOfPods(t)
	api := n.serveAPI(t, nil)
	objects := make(map[string]*corev1.Pod)
	start := func(name, app, on string) *pod {
		o := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uuid.NewUUID()), Labels: map[string]string{"app": app}},
			Spec:       corev1.PodSpec{NodeName: on},
		}
		objects[name] = o
		// As kubelets that leave cgroups to systemd name it.
		p := n.startPod(t, name, fmt.Sprintf("headgate-image-%d.slice/kubepods-burstable-pod%s.slice/cri-containerd-%s.scope",
			os.Getpid(), strings.ReplaceAll(string(o.UID), "-", "_"), name))
		api.put(watch.Added, o)
		return p
	}
	one, two := start("web-1", "web", nodeName), start("web-2", "web", nodeName)
	other := start("db-1", "db", nodeName)
	// As if it was another node's: what is asked for is this node's.
	foreign := start("web-3", "web", "node-2")

	// Neither of the rights is enough, and with both it goes on by itself.
	c := n.start(t, agent)
	c.says(t, "cannot list")
	api.allow([]rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}})
	c.says(t, "cannot watch")
	api.allow(role)
	c.ready(t, &agent.Containers[0])
	c.awaitTargets(t, "pod:shop/web-1", "pod:shop/web-2")
	got := map[string]int{"web-1": admitted(t, one.node, 5), "web-2": admitted(t, two.node, 2), "db-1": admitted(t, other.node, 5), "web-3": admitted(t, foreign.node, 5)}
	if diff := cmp.Diff(map[string]int{"web-1": 3, "web-2": 2, "db-1": 5, "web-3": 5}, got); diff != "" {
		t.Errorf("let in (-want +got):\n%s", diff)
	}
	apart := map[string]counts{"pod:shop/web-1": {Admitted: 3, Refused: 2, InFlight: 3}, "pod:shop/web-2": {Admitted: 2, InFlight: 2}}
	c.await(t, "counts apart", func(s map[string]counts) bool { return cmp.Equal(s, apart) })

	c.stop(t)
	c = n.start(t, agent)
	c.ready(t, &agent.Containers[0])
	c.awaitTargets(t, "pod:shop/web-1", "pod:shop/web-2")
	if diff := cmp.Diff(apart, c.status(t)); diff != "" {
		t.Errorf("counts after an update (-want +got):\n%s", diff)
	}
	if got := admitted(t, one.node, 2); got != 0 {
		t.Errorf("after an update %d more were let in, want none", got)
	}
	if got := admitted(t, two.node, 2); got != 1 {
		t.Errorf("after an update %d more were let in, want one", got)
	}

	two.end(t)
	api.put(watch.Deleted, objects["web-2"])
	c.awaitTargets(t, "pod:shop/web-1")
	four := start("web-4", "web", nodeName)
	c.awaitTargets(t, "pod:shop/web-1", "pod:shop/web-4")
	if got := admitted(t, four.node, 5); got != 3 {
		t.Errorf("of 5 connections to a new pod %d were let in, want 3", got)
	}
	c.stop(t)
	n.remove(t)

	t.Run("without a token", func(t *testing.T) {
		less := agent.DeepCopy()
		*less.AutomountServiceAccountToken = false
		if said, err := n.start(t, less).wait(t); err == nil || !strings.Contains(said, "automountServiceAccountToken") {
			t.Errorf("%v, want that it says what is missing:\n%s", err, said)
		}
	})
}
