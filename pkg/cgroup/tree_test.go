package cgroup_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/cgroup"
	"headgate/pkg/scope"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// below makes cgroups below that of a host and returns the path of the host's.
func below(t *testing.T, h *lab.Host, paths ...string) (tree cgroup.Tree, top string, groups map[string]*lab.Cgroup) {
	t.Helper()
	root, err := scope.Cgroup2()
	if err != nil {
		t.Fatal(err)
	}
	groups = make(map[string]*lab.Cgroup)
	for _, path := range paths {
		at := ""
		for name := range strings.SplitSeq(path, "/") {
			at = filepath.Join(at, name)
			c, err := h.SubCgroup(at)
			if err == nil {
				groups[at] = c
			} else if !errors.Is(err, fs.ErrExist) {
				t.Fatal(err)
			}
		}
	}
	return cgroup.Tree(root), strings.TrimPrefix(h.Cgroup.Path, root+"/"), groups
}

func TestFind(t *testing.T) {
	h := lab.ForTest(t, "srv").Host("srv")
	tree, top, _ := below(t, h, "a/b/x.scope", "a/x.scope", "x.scope", "c/y.scope", "a/b/c/d/x.scope/x.scope")
	for pattern, want := range map[string][]string{
		"x.scope":          {"x.scope"},
		"*.scope":          {"x.scope"},
		"**/x.scope":       {"a/b/c/d/x.scope", "a/b/c/d/x.scope/x.scope", "a/b/x.scope", "a/x.scope", "x.scope"},
		"a/**/x.scope":     {"a/b/c/d/x.scope", "a/b/c/d/x.scope/x.scope", "a/b/x.scope", "a/x.scope"},
		"?/?.scope":        {"a/x.scope", "c/y.scope"},
		"c":                {"c"},
		"none/x.scope":     nil,
		"cgroup.procs":     nil,
		"a/b/cgroup.procs": nil,
	} {
		p, err := cgroup.ParsePattern(top + "/" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tree.Find(p)
		for i := range got {
			got[i] = strings.TrimPrefix(got[i], top+"/")
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", pattern, got, err, want)
		}
	}
}

func TestGroup(t *testing.T) {
	l := lab.ForTest(t, "srv", "pod")
	srv, pod := l.Host("srv"), l.Host("pod")
	tree, top, groups := below(t, srv, "unit/deep/deeper", "unit/empty")
	netns := func(h *lab.Host) uint64 {
		n, err := scope.Inode(h.NetNS)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	look := func() cgroup.Group {
		g, err := tree.Group(top + "/unit")
		if err != nil {
			t.Error(err)
		}
		return g
	}
	if g := look(); len(g.IDs) != 4 || len(g.Netns) != 0 {
		t.Errorf("without processes: %+v", g)
	}
	spec := backend.Spec{Protocol: "line", Listen: []string{"127.0.0.1:80"}}
	deep, err := pod.StartServerIn(t.Context(), groups["unit/deep/deeper"], spec)
	if err != nil {
		t.Fatal(err)
	}
	if g := look(); len(g.Netns) != 1 || g.Netns[0] != (cgroup.Process{PID: deep.PID(), Netns: netns(pod)}) {
		t.Errorf("one process: %+v", g)
	}
	// One nearer to the top comes first.
	near, err := srv.StartServerIn(t.Context(), groups["unit/deep"], spec)
	if err != nil {
		t.Fatal(err)
	}
	if g := look(); len(g.Netns) != 2 || g.Netns[0].Netns != netns(srv) || g.Netns[1].Netns != netns(pod) {
		t.Errorf("two processes: %+v", g)
	}
	if err := errors.Join(deep.Stop(), near.Stop()); err != nil {
		t.Fatal(err)
	}
	if g := look(); len(g.Netns) != 0 {
		t.Errorf("after all have ended: %+v", g)
	}
	if g, err := tree.Group(top + "/none"); err != nil || len(g.IDs) != 0 {
		t.Errorf("no cgroup: %+v, %v", g, err)
	}
}

func TestPods(t *testing.T) {
	h := lab.ForTest(t, "srv").Host("srv")
	uid := func(n int) string { return fmt.Sprintf("%08x-0000-4000-8000-%012x", os.Getpid(), n) }
	tree, top, _ := below(t, h,
		"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"+strings.ReplaceAll(uid(1), "-", "_")+".slice/cri-containerd-1.scope",
		"kubepods/pod"+uid(2)+"/1",
		"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod"+strings.ReplaceAll(uid(3), "-", "_")+".slice/crio-1.scope",
		"system.slice/podman.service")
	got, err := tree.Pods()
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]string{1: "kubepods.slice/", 2: "kubepods/", 3: "kubelet.slice/"} {
		if path := got[uid(n)]; !strings.HasPrefix(path, top+"/"+want) || cgroup.PodUID(filepath.Base(path)) != uid(n) {
			t.Errorf("pod %d at %q", n, path)
		}
	}
}

// What a look costs on a host with a thousand cgroups, a hundred of them of pods.
func BenchmarkLook(b *testing.B) {
	h := lab.ForTest(b, "srv").Host("srv")
	root, err := scope.Cgroup2()
	if err != nil {
		b.Fatal(err)
	}
	for i := range 100 {
		pod := fmt.Sprintf("pod%08x-0000-4000-8000-%012x", os.Getpid(), i)
		for c := range 9 {
			if err := os.MkdirAll(filepath.Join(h.Cgroup.Path, "kubepods", pod, fmt.Sprint(c)), 0o755); err != nil {
				b.Fatal(err)
			}
		}
	}
	tree := cgroup.Tree(root)
	p, err := cgroup.ParsePattern("**/kubepods/**/[0-4]")
	if err != nil {
		b.Fatal(err)
	}
	b.Run("pods", func(b *testing.B) {
		for b.Loop() {
			pods, err := tree.Pods()
			if err != nil || len(pods) < 100 {
				b.Fatal(len(pods), err)
			}
		}
	})
	b.Run("pattern", func(b *testing.B) {
		for b.Loop() {
			if found, err := tree.Find(p); err != nil || len(found) < 500 {
				b.Fatal(len(found), err)
			}
		}
	})
	b.Run("processes", func(b *testing.B) {
		pods, err := tree.Pods()
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			for _, path := range pods {
				if _, err := tree.Group(path); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
