package packaging

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// node is what a pod of ours finds on a node: a network namespace, with bpffs and
// a directory for sockets that are this test's own.
type node struct {
	netns  string
	bpffs  string
	run    string
	config string
	rootfs string
	runc   string     // where it keeps what it knows
	api    *apiServer // of its cluster; nil for none
}

func newNode(t *testing.T, rootfs string) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{
		netns: fmt.Sprintf("headgate-image-%d", os.Getpid()), rootfs: rootfs,
		bpffs: filepath.Join(dir, "bpf"), run: filepath.Join(dir, "run"), config: filepath.Join(dir, "config"), runc: filepath.Join(dir, "runc"),
	}
	for _, d := range []string{n.bpffs, n.run, n.config} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "mount", "-t", "bpf", "bpf", n.bpffs)
	t.Cleanup(func() { run(t, "umount", n.bpffs) })
	run(t, "ip", "netns", "add", n.netns)
	t.Cleanup(func() { run(t, "ip", "netns", "del", n.netns) })
	run(t, "ip", "-n", n.netns, "link", "set", "lo", "up")
	return n
}

// in runs f in the node's network namespace. Sockets stay in there.
func (n *node) in(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with it
		ns, err := os.Open("/run/netns/" + n.netns)
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			ns.Close()
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// bundle writes what runc needs to run the container of a pod as a kubelet would
// have it run, and returns the directory. A system call may be forbidden.
func (n *node) bundle(t *testing.T, pod *corev1.PodSpec, forbidden string) string {
	t.Helper()
	c := pod.Containers[0]
	caps := []string{}
	for _, name := range c.SecurityContext.Capabilities.Add {
		caps = append(caps, "CAP_"+string(name))
	}
	mounts := []map[string]any{
		{"destination": "/proc", "type": "proc", "source": "proc", "options": []string{"nosuid", "noexec", "nodev"}},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{"destination": "/sys", "type": "bind", "source": "/sys", "options": []string{"rbind", "nosuid", "noexec", "nodev", "ro"}},
	}
	for _, m := range c.VolumeMounts {
		source := map[string]string{
			"/sys/fs/bpf": n.bpffs, "/run/headgate": n.run, "/etc/headgate": n.config, "/sys/fs/cgroup": "/sys/fs/cgroup",
		}[m.MountPath]
		access := "rw"
		if m.ReadOnly {
			access = "ro"
		}
		mounts = append(mounts, map[string]any{
			"destination": m.MountPath, "type": "bind", "source": source, "options": []string{"rbind", access},
		})
	}
	env := []string{"PATH=/usr/bin", "HEADGATE_NODE=" + nodeName}
	if n.api != nil {
		env = append(env, "KUBERNETES_SERVICE_HOST="+n.api.host, "KUBERNETES_SERVICE_PORT="+n.api.port)
		if *pod.AutomountServiceAccountToken {
			mounts = append(mounts, map[string]any{
				"destination": "/var/run/secrets/kubernetes.io/serviceaccount", "type": "bind", "source": n.api.account, "options": []string{"rbind", "ro"},
			})
		}
	}
	namespaces := []map[string]string{{"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "cgroup"}}
	if pod.HostNetwork {
		namespaces = append(namespaces, map[string]string{"type": "network", "path": "/run/netns/" + n.netns})
	}
	if !pod.HostPID {
		namespaces = append(namespaces, map[string]string{"type": "pid"})
	}
	var seccomp any
	profile := read(t, "container/seccomp.json")
	if forbidden != "" {
		profile = strings.ReplaceAll(profile, `"`+forbidden+`", `, "")
	}
	if err := json.Unmarshal([]byte(profile), &seccomp); err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.2",
		"root":       map[string]any{"path": n.rootfs, "readonly": *c.SecurityContext.ReadOnlyRootFilesystem},
		"process": map[string]any{
			"user": map[string]any{"uid": *c.SecurityContext.RunAsUser, "gid": 0},
			"cwd":  "/", "args": append([]string{"/usr/bin/headgate"}, c.Args...),
			"env":             env,
			"noNewPrivileges": !*c.SecurityContext.AllowPrivilegeEscalation,
			"capabilities":    map[string]any{"bounding": caps, "effective": caps, "permitted": caps},
		},
		"mounts": mounts,
		"linux":  map[string]any{"namespaces": namespaces, "seccomp": seccomp},
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.json"), string(spec))
	return dir
}

// container is one that runs.
type container struct {
	node *node
	id   string
	log  string
	end  chan error
}

func (n *node) start(t *testing.T, pod *corev1.PodSpec) *container {
	t.Helper()
	return n.startWithout(t, pod, "")
}

func (n *node) startWithout(t *testing.T, pod *corev1.PodSpec, forbidden string) *container {
	t.Helper()
	dir := n.bundle(t, pod, forbidden)
	c := &container{
		node: n, id: strings.ReplaceAll(filepath.Base(dir)+"-"+n.netns, "/", "-"),
		log: filepath.Join(dir, "log"), end: make(chan error, 1),
	}
	log, err := os.Create(c.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("runc", "--root", n.runc, "run", "--bundle", dir, c.id)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { c.end <- cmd.Wait() }()
	t.Cleanup(func() {
		if c.end != nil {
			_ = exec.Command("runc", "--root", n.runc, "delete", "--force", c.id).Run()
			<-c.end
		}
		if t.Failed() {
			t.Logf("%s:\n%s", c.id, read(t, c.log))
		}
	})
	return c
}

// wait returns how a container that ends by itself has ended, and what it said.
func (c *container) wait(t *testing.T) (said string, err error) {
	t.Helper()
	select {
	case err = <-c.end:
		c.end = nil
	case <-time.After(20 * time.Second):
		t.Fatalf("%s does not end", c.id)
	}
	return read(t, c.log), err
}

func (c *container) stop(t *testing.T) {
	t.Helper()
	run(t, "runc", "--root", c.node.runc, "kill", c.id, "TERM")
	if said, err := c.wait(t); err != nil {
		t.Fatalf("%v:\n%s", err, said)
	}
}

// probe asks what a kubelet asks.
func (n *node) probe(t *testing.T, p *corev1.Probe) error {
	t.Helper()
	var err error
	n.in(t, func() {
		// Dialed on this thread: a transport would do so on another.
		var conn net.Conn
		conn, err = net.Dial("tcp", net.JoinHostPort(p.HTTPGet.Host, p.HTTPGet.Port.String()))
		if err != nil {
			return
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}}
		var resp *http.Response
		if resp, err = client.Get("http://node" + p.HTTPGet.Path); err != nil {
			return
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			err = errors.New(resp.Status)
		}
	})
	return err
}

// ready waits until a container's probes succeed.
func (c *container) ready(t *testing.T, spec *corev1.Container) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := errors.Join(c.node.probe(t, spec.LivenessProbe), c.node.probe(t, spec.ReadinessProbe))
		if err == nil {
			return
		}
		select {
		case ended := <-c.end:
			c.end = nil
			t.Fatalf("%v:\n%s", ended, read(t, c.log))
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("not ready: %v\n%s", err, read(t, c.log))
		}
	}
}

func TestContainer(t *testing.T) {
	needRoot(t)
	rootfs := image(t)
	t.Run("node", func(t *testing.T) { containerOfNode(t, newNode(t, rootfs)) })
	t.Run("pods", func(t *testing.T) { containerOfPods(t, newNode(t, rootfs)) })
	t.Run("cluster", func(t *testing.T) { containerOfCluster(t, newNode(t, rootfs)) })
}

// The image runs with what the manifests give it, protects a server of the node,
// and takes out of the kernel what it has put there. Without any one of its
// capabilities it says which is missing.
func containerOfNode(t *testing.T, n *node) {
	write(t, filepath.Join(n.config, "headgate.yaml"), `rules:
  - {name: web, port: 8080, limit: {algorithm: fixed, initial: 3}}
`)
	agent := kustomize(t, "kubernetes/base")["DaemonSet/headgate"].(*appsv1.DaemonSet).Spec.Template.Spec
	remove := kustomize(t, "kubernetes/remove")["Job/headgate-remove"].(*batchv1.Job).Spec.Template.Spec

	t.Run("protects", func(t *testing.T) {
		var server net.Listener
		var err error
		n.in(t, func() { server, err = net.Listen("tcp", ":8080") })
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		go func() {
			for {
				conn, err := server.Accept()
				if err != nil {
					return
				}
				go func() { defer conn.Close(); _, _ = io.Copy(conn, conn) }()
			}
		}()
		c := n.start(t, &agent)
		c.ready(t, &agent.Containers[0])
		if got := admitted(t, n, 5); got != 3 {
			t.Errorf("of 5 connections %d were let in, want 3", got)
		}
		out := run(t, "runc", "--root", n.runc, "exec", c.id, "/usr/bin/headgate", "status")
		if !strings.Contains(out, "web") {
			t.Errorf("status: %s", out)
		}
		if out, err := exec.Command("runc", "--root", n.runc, "exec", c.id, "/usr/bin/headgate", "man", "/usr/share/man").CombinedOutput(); err == nil ||
			!strings.Contains(string(out), "read-only") {
			t.Errorf("the root can be written: %v %s", err, out)
		}
		c.stop(t)
		if pins, _ := os.ReadDir(filepath.Join(n.bpffs, "headgate")); len(pins) == 0 {
			t.Error("the agent has left nothing to its successor")
		}
		if said, err := n.start(t, &remove).wait(t); err != nil {
			t.Fatalf("remove: %v\n%s", err, said)
		}
		if _, err := os.Stat(filepath.Join(n.bpffs, "headgate")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left after removal: %v", err)
		}
	})

	t.Run("bpf forbidden", func(t *testing.T) {
		said, err := n.startWithout(t, &agent, "bpf").wait(t)
		if err == nil || !strings.Contains(said, "seccomp") || strings.Contains(said, "CAP_") {
			t.Errorf("%v, want that it says what may be in the way:\n%s", err, said)
		}
	})
	t.Run("hold", func(t *testing.T) {
		write(t, filepath.Join(n.config, "headgate.yaml"), `rules:
  - {name: web, port: 8080, limit: {algorithm: fixed, initial: 3}, hold: {max_wait: 1s}}
`)
		said, err := n.start(t, &agent).wait(t)
		if err == nil || !strings.Contains(said, "CAP_NET_RAW") {
			t.Errorf("without CAP_NET_RAW: %v\n%s", err, said)
		}
		holding := kustomize(t, "kubernetes/overlays/hold")["DaemonSet/headgate"].(*appsv1.DaemonSet).Spec.Template.Spec
		c := n.start(t, &holding)
		c.ready(t, &holding.Containers[0])
		c.stop(t)
	})
	write(t, filepath.Join(n.config, "headgate.yaml"), "rules: [{port: 8080}]\n")
	for _, missing := range agent.Containers[0].SecurityContext.Capabilities.Add {
		t.Run("without "+string(missing), func(t *testing.T) {
			less := agent.DeepCopy()
			caps := less.Containers[0].SecurityContext.Capabilities
			caps.Add = slices.DeleteFunc(caps.Add, func(c corev1.Capability) bool { return c == missing })
			said, err := n.start(t, less).wait(t)
			if err == nil {
				t.Fatalf("it runs, and so does not need it:\n%s", said)
			}
			for _, c := range every {
				if named := strings.Contains(said, "CAP_"+string(c)); named != (c == missing) {
					t.Errorf("CAP_%s named: %t\n%s", c, named, said)
				}
			}
		})
	}
}

// admitted opens so many connections at once and returns how many of them the
// server answers.
func admitted(t *testing.T, n *node, connections int) (answered int) {
	t.Helper()
	for range connections {
		n.in(t, func() {
			conn, err := net.DialTimeout("tcp", "127.0.0.1:8080", 2*time.Second)
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
			if _, err := conn.Write([]byte("x")); err != nil {
				return
			}
			if _, err := io.ReadFull(conn, make([]byte, 1)); err == nil {
				answered++
			}
		})
	}
	return answered
}
