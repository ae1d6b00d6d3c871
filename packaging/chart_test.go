package packaging

import (
	"fmt"
	"maps"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// helm renders the chart, as helm template does.
func helm(values string) (manifests, notes string, err error) {
	c, err := loader.Load("chart")
	if err != nil {
		return "", "", err
	}
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		return "", "", err
	}
	all, err := chartutil.ToRenderValues(c, given, chartutil.ReleaseOptions{
		Name: "headgate", Namespace: "headgate", IsInstall: true,
	}, chartutil.DefaultCapabilities)
	if err != nil {
		return "", "", err
	}
	files, err := engine.Engine{Strict: true}.Render(c, all)
	if err != nil {
		return "", "", err
	}
	var text strings.Builder
	for name, file := range files {
		switch path.Ext(name) {
		case ".yaml":
			fmt.Fprintf(&text, "---\n%s\n", file)
		case ".txt":
			notes = file
		}
	}
	return text.String(), notes, nil
}

// chart is what the chart makes of values.
func chart(t *testing.T, values string) objects {
	t.Helper()
	text, _, err := helm(values)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, text)
}

// configOf reads the configuration that agents get, and takes it out.
func configOf(t *testing.T, all objects) (config map[string]any) {
	t.Helper()
	cm, ok := all["ConfigMap/headgate"].(*corev1.ConfigMap)
	if !ok {
		t.Fatal("no configuration")
	}
	if err := yaml.UnmarshalStrict([]byte(cm.Data["headgate.yaml"]), &config); err != nil {
		t.Fatal(err)
	}
	cm.Data = nil
	return config
}

// With the same choices the chart makes what kustomize makes, but for the
// namespace, which is helm's business.
func TestChart(t *testing.T) {
	for dir, values := range map[string]string{
		"base":                         "",
		"overlays/hold":                "hold: true",
		"overlays/seccomp":             "seccompProfile: {type: Localhost, localhostProfile: headgate.json}",
		"overlays/prometheus":          "prometheus: {annotations: true}",
		"overlays/prometheus-operator": "prometheus: {podMonitor: true}",
		"overlays/pods":                "pods: true",
	} {
		t.Run(dir, func(t *testing.T) {
			want := kustomize(t, "kubernetes/"+dir)
			maps.DeleteFunc(want, func(name string, _ metav1.Object) bool { return strings.HasPrefix(name, "Namespace/") })
			got := chart(t, values)
			if diff := cmp.Diff(configOf(t, want), configOf(t, got)); diff != "" {
				t.Errorf("configuration (-kustomize +helm):\n%s", diff)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-kustomize +helm:\n%s", diff)
			}
		})
	}
}

func TestChartValues(t *testing.T) {
	all := chart(t, `
image: {repository: registry.example/net/headgate, tag: 1.2.3, pullSecrets: [{name: key}]}
mode: enforce
config: {lease: 5s, rules: [{name: web, port: 8080, hold: 1s}]}
hold: true
pods: true
tolerations: []
nodeSelector: {role: edge}
priorityClassName: ""
resources: {requests: {cpu: 1, memory: 1Gi}, limits: {memory: 1Gi}}
updateStrategy: {type: OnDelete, rollingUpdate: null}
`)
	want := map[string]any{"mode": "enforce", "lease": "5s", "rules": []any{
		map[string]any{"name": "web", "port": 8080.0, "hold": "1s"},
	}}
	if diff := cmp.Diff(want, configOf(t, all)); diff != "" {
		t.Errorf("configuration:\n%s", diff)
	}
	text, err := yaml.Marshal(all["DaemonSet/headgate"])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"image: registry.example/net/headgate:1.2.3\n", "imagePullSecrets:\n      - name: key\n", "type: OnDelete\n",
		"nodeSelector:\n        kubernetes.io/os: linux\n        role: edge\n", "memory: 1Gi\n", "- NET_RAW\n", "- SYS_ADMIN\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	for _, not := range []string{"tolerations", "priorityClassName"} {
		if strings.Contains(string(text), not) {
			t.Errorf("%s is in\n%s", not, text)
		}
	}

	for values, place := range map[string]string{
		"mod: enforce":            "mod",
		"mode: on":                "mode",
		"image: {tag: latest}":    "tag",
		"config: {mode: enforce}": "config",
		"config: {rules: 80}":     "rules",
		"pods: maybe":             "pods",
		"updateStrategy: {rollingUpdate: {maxSurge: 1}}": "maxSurge",
	} {
		if _, _, err := helm(values); err == nil || !strings.Contains(err.Error(), place) {
			t.Errorf("%s: %v, want an error that names %s", values, err, place)
		}
	}
	if _, notes, err := helm(""); err != nil || !strings.Contains(notes, "mode=enforce") {
		t.Errorf("notes: %v %q", err, notes)
	}
}
