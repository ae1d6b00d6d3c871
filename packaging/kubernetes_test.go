package packaging

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// podMonitor is what is used of the operator's own type.
type podMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector            metav1.LabelSelector `json:"selector"`
		PodMetricsEndpoints []struct {
			PortNumber  int32  `json:"portNumber"`
			Path        string `json:"path"`
			Relabelings []struct {
				SourceLabels []string `json:"sourceLabels"`
				TargetLabel  string   `json:"targetLabel"`
			} `json:"relabelings"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// object makes what a manifest of that kind is decoded into.
func object(kind string) metav1.Object {
	switch kind {
	case "v1/Namespace":
		return &corev1.Namespace{}
	case "v1/ServiceAccount":
		return &corev1.ServiceAccount{}
	case "v1/ConfigMap":
		return &corev1.ConfigMap{}
	case "apps/v1/DaemonSet":
		return &appsv1.DaemonSet{}
	case "batch/v1/Job":
		return &batchv1.Job{}
	case "rbac.authorization.k8s.io/v1/ClusterRole":
		return &rbacv1.ClusterRole{}
	case "rbac.authorization.k8s.io/v1/ClusterRoleBinding":
		return &rbacv1.ClusterRoleBinding{}
	case "monitoring.coreos.com/v1/PodMonitor":
		return &podMonitor{}
	}
	return nil
}

// objects are manifests, by kind/name.
type objects map[string]metav1.Object

// decode reads manifests as strictly as an API server that validates fields.
func decode(t *testing.T, text string) objects {
	t.Helper()
	found := make(objects)
	for _, doc := range strings.Split("\n"+text, "\n---") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		var is metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &is); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if is.Kind == "" {
			continue // a comment
		}
		o := object(is.APIVersion + "/" + is.Kind)
		if o == nil {
			t.Fatalf("unknown: %s %s in\n%s", is.APIVersion, is.Kind, doc)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), o); err != nil {
			t.Errorf("%s: %v in\n%s", is.Kind, err, doc)
		}
		name := is.Kind + "/" + o.GetName()
		if found[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		found[name] = o
	}
	return found
}

func kustomize(t *testing.T, dir string) objects {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	text, err := made.AsYaml()
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	return decode(t, string(text))
}

// want is where manifests differ from the base.
type want struct {
	capabilities []corev1.Capability // beside those of every agent
	pods         bool                // may see and enter pods
	localhost    bool                // seccomp by a file of the node's
	listen       string
}

var every = []corev1.Capability{"BPF", "NET_ADMIN", "PERFMON"}

func TestKustomize(t *testing.T) {
	const loopback = "127.0.0.1:9464"
	for dir, want := range map[string]want{
		"base":                         {listen: loopback},
		"overlays/hold":                {listen: loopback, capabilities: []corev1.Capability{"NET_RAW"}},
		"overlays/seccomp":             {listen: loopback, localhost: true},
		"overlays/prometheus":          {listen: ":9464"},
		"overlays/prometheus-operator": {listen: ":9464"},
		"overlays/pods":                {listen: loopback, pods: true, capabilities: []corev1.Capability{"SYS_ADMIN", "SYS_PTRACE"}},
	} {
		t.Run(dir, func(t *testing.T) {
			all := kustomize(t, "kubernetes/"+dir)
			checkAgents(t, all, want)
			if _, there := all["PodMonitor/headgate"]; there != (dir == "overlays/prometheus-operator") {
				t.Errorf("PodMonitor: %t", there)
			}
			ds := all["DaemonSet/headgate"].(*appsv1.DaemonSet)
			if scrape := ds.Spec.Template.Annotations["prometheus.io/scrape"]; (scrape == "true") != (dir == "overlays/prometheus") {
				t.Errorf("annotation for Prometheus: %q", scrape)
			}
		})
	}
	t.Run("remove", func(t *testing.T) {
		all := kustomize(t, "kubernetes/remove")
		job, ok := all["Job/headgate-remove"].(*batchv1.Job)
		if !ok || len(all) != 1 {
			t.Fatalf("want one job, got %v", all)
		}
		pod := &job.Spec.Template
		checkPod(t, pod, want{})
		anti := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		if len(anti) != 1 || anti[0].TopologyKey != corev1.LabelHostname {
			t.Fatalf("two of its pods may run on one node: %v", anti)
		}
		if !selects(t, anti[0].LabelSelector, pod.Labels) {
			t.Errorf("two of its pods may run on one node: %v does not select %v", anti[0].LabelSelector, pod.Labels)
		}
		if job.Namespace == "headgate" {
			t.Error("it is in the namespace that is deleted before")
		}
		if got := pod.Spec.Containers[0].Args; !slices.Equal(got, []string{"cleanup"}) {
			t.Errorf("runs %q", got)
		}
		if p := pod.Spec.RestartPolicy; p != corev1.RestartPolicyOnFailure && p != corev1.RestartPolicyNever {
			t.Errorf("restart policy %q", p)
		}
	})
}

// checkAgents checks what has to be true of whatever brings the agents to nodes.
func checkAgents(t *testing.T, all objects, want want) {
	t.Helper()
	ds, ok := all["DaemonSet/headgate"].(*appsv1.DaemonSet)
	if !ok {
		t.Fatalf("no DaemonSet: %v", all)
	}
	pod := &ds.Spec.Template
	checkPod(t, pod, want)
	if !selects(t, ds.Spec.Selector, pod.Labels) {
		t.Errorf("the selector %v does not select its pods %v", ds.Spec.Selector, pod.Labels)
	}
	if ds.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType || ds.Spec.UpdateStrategy.RollingUpdate.MaxSurge != nil {
		t.Error("two agents on one node: of one state directory the second does not start")
	}
	if !ds.Spec.Template.Spec.HostNetwork {
		t.Error("not in the network of the node")
	}
	if len(pod.Spec.Tolerations) == 0 || pod.Spec.Tolerations[0].Operator != corev1.TolerationOpExists {
		t.Error("not on every node")
	}

	c := pod.Spec.Containers[0]
	for _, arg := range []string{"run", "--config=/etc/headgate/headgate.yaml", "--keep", "--listen=" + want.listen} {
		if !slices.Contains(c.Args, arg) {
			t.Errorf("%q is not among %q", arg, c.Args)
		}
	}
	for path, probe := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		switch {
		case probe == nil || probe.HTTPGet == nil:
			t.Errorf("no probe of %s", path)
		case probe.HTTPGet.Path != path || probe.HTTPGet.Host != "127.0.0.1" || probe.HTTPGet.Port.IntValue() != 9464:
			t.Errorf("probe: %v, want %s where the agent listens", probe.HTTPGet, path)
		}
	}
	if i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "HEADGATE_NODE" }); i < 0 ||
		c.Env[i].ValueFrom.FieldRef.FieldPath != "spec.nodeName" {
		t.Error("HEADGATE_NODE is not the name of the node")
	}

	cm, ok := all["ConfigMap/headgate"].(*corev1.ConfigMap)
	if !ok || cm.Data["headgate.yaml"] == "" || cm.Namespace != ds.Namespace {
		t.Error("no configuration")
	}
	account, ok := all["ServiceAccount/"+pod.Spec.ServiceAccountName]
	if !ok || account.GetNamespace() != ds.Namespace {
		t.Errorf("no service account %q", pod.Spec.ServiceAccountName)
	}
	if m := pod.Spec.AutomountServiceAccountToken; m == nil || *m != want.pods {
		t.Error("a token for the API server: want one where pods are asked for, and nowhere else")
	}
	role, _ := all["ClusterRole/headgate"].(*rbacv1.ClusterRole)
	binding, _ := all["ClusterRoleBinding/headgate"].(*rbacv1.ClusterRoleBinding)
	if !want.pods {
		if role != nil || binding != nil {
			t.Error("rights in the cluster that nobody needs")
		}
	} else if role == nil || binding == nil {
		t.Error("no right to see pods")
	} else {
		if got, want := fmt.Sprint(role.Rules), fmt.Sprint([]rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"},
		}}); got != want {
			t.Errorf("may %s, want %s", got, want)
		}
		s := binding.Subjects
		if len(s) != 1 || s[0].Name != account.GetName() || s[0].Namespace != ds.Namespace || binding.RoleRef.Name != role.Name {
			t.Errorf("bound: %v to %v", s, binding.RoleRef)
		}
	}
	if monitor, ok := all["PodMonitor/headgate"].(*podMonitor); ok {
		if !selects(t, &monitor.Spec.Selector, pod.Labels) {
			t.Errorf("the PodMonitor %v does not select %v", monitor.Spec.Selector, pod.Labels)
		}
		if e := monitor.Spec.PodMetricsEndpoints; len(e) != 1 || e[0].PortNumber != 9464 || e[0].Path != "/metrics" {
			t.Errorf("PodMonitor: %v", e)
		}
	}
}

// checkPod checks what every pod of ours may do, and no more.
func checkPod(t *testing.T, pod *corev1.PodTemplateSpec, want want) {
	t.Helper()
	spec := &pod.Spec
	if len(spec.Containers) != 1 || len(spec.InitContainers) != 0 {
		t.Fatalf("%d containers", len(spec.Containers)+len(spec.InitContainers))
	}
	if spec.HostPID != want.pods || spec.HostIPC {
		t.Errorf("hostPID %t, hostIPC %t", spec.HostPID, spec.HostIPC)
	}
	c := spec.Containers[0]
	s := c.SecurityContext
	if s == nil || s.Capabilities == nil || s.SeccompProfile == nil {
		t.Fatal("no limits to what it may do")
	}
	if s.Privileged == nil || *s.Privileged || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
		t.Error("privileged")
	}
	if s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
		t.Error("the root can be written")
	}
	got, may := slices.Sorted(slices.Values(s.Capabilities.Add)), slices.Sorted(slices.Values(append(slices.Clone(every), want.capabilities...)))
	if !slices.Equal(got, may) || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("capabilities %v of %v, want %v", got, s.Capabilities.Drop, may)
	}
	switch p := s.SeccompProfile; {
	case want.localhost && (p.Type != corev1.SeccompProfileTypeLocalhost || p.LocalhostProfile == nil):
		t.Errorf("seccomp: %v", p)
	case !want.localhost && p.Type != corev1.SeccompProfileTypeRuntimeDefault:
		t.Errorf("seccomp: %v", p)
	}
	// A tag that moves is another program on each node.
	if _, tag, ok := strings.Cut(c.Image, ":"); !ok || tag == "latest" || c.ImagePullPolicy != corev1.PullIfNotPresent {
		t.Errorf("image %q, pulled %s", c.Image, c.ImagePullPolicy)
	}
	if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
		t.Errorf("resources: %v", c.Resources)
	}
	volumes := make(map[string]corev1.Volume)
	for _, v := range spec.Volumes {
		volumes[v.Name] = v
	}
	paths := make(map[string]corev1.VolumeMount)
	for _, m := range c.VolumeMounts {
		v, ok := volumes[m.Name]
		if !ok {
			t.Errorf("mounts %s, which is none of its volumes", m.Name)
		}
		delete(volumes, m.Name)
		paths[m.MountPath] = m
		if v.HostPath == nil {
			continue
		}
		if v.HostPath.Path != m.MountPath {
			t.Errorf("%s of the node is mounted at %s", v.HostPath.Path, m.MountPath)
		}
		if writable := m.MountPath == "/sys/fs/bpf" || m.MountPath == "/run/headgate"; m.ReadOnly == writable {
			t.Errorf("%s of the node: read-only %t", v.HostPath.Path, m.ReadOnly)
		}
	}
	for name := range volumes {
		t.Errorf("the volume %s is mounted nowhere", name)
	}
	for _, path := range []string{"/sys/fs/bpf", "/sys/fs/cgroup"} {
		if _, ok := paths[path]; !ok {
			t.Errorf("%s is not mounted", path)
		}
	}
}

func selects(t *testing.T, s *metav1.LabelSelector, is map[string]string) bool {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return !selector.Empty() && selector.Matches(labels.Set(is))
}
