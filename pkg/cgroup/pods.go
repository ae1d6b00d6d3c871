package cgroup

import (
	"path"
	"regexp"
	"strings"
)

// podName is how kubelets call the cgroup of a pod: pod1f2e... with the cgroupfs
// driver, kubepods-burstable-pod1f2e....slice with systemd's, where a dash would
// mean another level and so is an underscore. The UID of a static pod is a hash.
var podName = regexp.MustCompile(`^(?:[a-z0-9-]+-)?pod([0-9a-f]{8}([-_])[0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(\.slice)?$`)

// PodUID returns the UID of the pod that a cgroup of that name is of, empty when
// it is none.
func PodUID(name string) string {
	m := podName.FindStringSubmatch(name)
	if m == nil {
		return ""
	}
	return strings.ReplaceAll(m[1], "_", "-")
}

// Pods returns the paths of the cgroups of all pods, by UID.
func (t Tree) Pods() (map[string]string, error) {
	pods := make(map[string]string)
	return pods, t.pods("", pods)
}

func (t Tree) pods(cgroup string, pods map[string]string) error {
	names, err := t.children(cgroup)
	if err != nil {
		return err
	}
	for _, name := range names {
		child := path.Join(cgroup, name)
		if uid := PodUID(name); uid != "" {
			pods[uid] = child
			continue
		}
		if err := t.pods(child, pods); err != nil {
			return err
		}
	}
	return nil
}
