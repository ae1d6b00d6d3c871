package packaging

import (
	"os"
	"os/exec"
	"testing"
)

// The testbed is run by make testbed and make testbed-qemu; here, whether what
// describes it is understood.
func TestTestbed(t *testing.T) {
	needRoot(t) // who runs all tests has what they take
	cmd := exec.Command("vagrant", "validate")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "VAGRANT_HOME="+t.TempDir(), "VAGRANT_CHECKPOINT_DISABLE=1", "VAGRANT_DEFAULT_PROVIDER=libvirt")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	for _, script := range []string{"provision", "scenario", "qemu", "guest"} {
		run(t, "bash", "-n", "../testbed/"+script)
	}
	run(t, "promtool", "check", "config", "--syntax-only", "../testbed/prometheus.yml")
}
