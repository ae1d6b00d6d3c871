package packaging

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// The testbed is run by make testbed and make testbed-qemu; here, whether what
// describes it is understood, by both of Vagrant's providers that it is for.
func TestTestbed(t *testing.T) {
	needRoot(t) // who runs all tests has what they take
	// The provider for VirtualBox wants to know its version, to read what is for it.
	bin := t.TempDir()
	write(t, filepath.Join(bin, "VBoxManage"), "#!/bin/sh\necho 7.0.20r163906\n")
	if err := os.Chmod(filepath.Join(bin, "VBoxManage"), 0o755); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	for _, provider := range []string{"libvirt", "virtualbox"} {
		cmd := exec.Command("vagrant", "validate")
		cmd.Dir = ".."
		cmd.Env = append(os.Environ(), "VAGRANT_HOME="+home, "VAGRANT_CHECKPOINT_DISABLE=1",
			"VAGRANT_DEFAULT_PROVIDER="+provider, "PATH="+bin+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v:\n%s", provider, err, out)
		}
	}
	// Nothing but bringing the machines up tells this, and VirtualBox alone.
	allowed := netip.MustParsePrefix("192.168.56.0/21")
	addresses := regexp.MustCompile(`"(\d+\.\d+\.\d+\.\d+)"`).FindAllStringSubmatch(read(t, "../Vagrantfile"), -1)
	if len(addresses) != 3 {
		t.Errorf("%d addresses of three machines", len(addresses))
	}
	for _, a := range addresses {
		if addr, err := netip.ParseAddr(a[1]); err != nil || !allowed.Contains(addr) {
			t.Errorf("VirtualBox allows no address %s (%v), only %s", a[1], err, allowed)
		}
	}
	for _, script := range []string{"provision", "scenario", "qemu", "guest"} {
		run(t, "bash", "-n", "../testbed/"+script)
	}
	run(t, "promtool", "check", "config", "--syntax-only", "../testbed/prometheus.yml")
}
