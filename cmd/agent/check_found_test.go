package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/pkg/scope"
)

func TestCheckLooksForWhatComesAndGoes(t *testing.T) {
	lab.NeedRoot(t)
	h := lab.ForTest(t, "srv").Host("srv")
	group, err := h.SubCgroup("web.service")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.StartServerIn(t.Context(), group, backend.Spec{Protocol: "line", Listen: []string{":8080"}}); err != nil {
		t.Fatal(err)
	}
	root, err := scope.Cgroup2()
	if err != nil {
		t.Fatal(err)
	}
	top := strings.TrimPrefix(h.Cgroup.Path, root+"/")
	file := filepath.Join(t.TempDir(), "c.yaml")
	check := func(more string) (int, string) {
		text := fmt.Sprintf("state: %s/checked\nrules:\n  - {name: web, port: 8080, scope: {cgroup: '%s/*.service'}}\n%s", bpffs, top, more)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := runMain(t, "check", "-c", file)
		return code, out + errs
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("HEADGATE_KUBERNETES_API", "")
	code, out := check("  - {name: none, port: 1, scope: {cgroup: " + top + "/none}}\n" +
		"  - {name: again, port: 8080, scope: {cgroup: " + top + "/web.service}}\n")
	web := "cgroup:" + top + "/web.service"
	for _, want := range []string{
		"  network namespace " + web + ": admit: port 8080 (sk_lookup)\n",
		"  cgroup " + group.Path + ": time requests: port 8080 (cgroup_skb)\n",
		"  port 8080 in " + web + ", rule web: connections, ",
		"needs CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN (to enter other network namespaces), CAP_SYS_PTRACE (to find those of the processes of others)\n",
		"note: rule none finds nothing in cgroup:" + top + "/none now; what comes is protected within 2 seconds\n",
		"note: rule again would not protect port 8080 in " + web + ": rule web protects the port already",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	if code, out := check("  - {name: pods, port: 1, scope: {pods: {namespace: shop}}}\n"); code != 1 || !strings.Contains(out, "known to the Kubernetes API alone, and there is none") {
		t.Errorf("exit code %d: %s", code, out)
	}
	// The host of the API does not answer: what can be said is said.
	t.Setenv("HEADGATE_KUBERNETES_API", "http://127.0.0.1:1")
	t.Setenv("HEADGATE_NODE", "n")
	if code, out := check("  - {name: pods, port: 1, scope: {pods: {namespace: shop}}}\n"); code != 0 || !strings.Contains(out, "note: it cannot be known now what there is to protect: rule pods: pods:shop: ") {
		t.Errorf("exit code %d: %s", code, out)
	}
}
