package packaging

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// needRoot skips where nobody may change the root of a process.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 && os.Getenv("HEADGATE_SKIP_ROOT") != "1" {
		return
	}
	if os.Getenv("HEADGATE_REQUIRE_ROOT") == "1" {
		t.Fatal("needs root")
	}
	t.Skip("needs root")
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// packages builds the packages of a version for this machine and returns the
// path of them without the ending.
func packages(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	arch := strings.TrimSpace(run(t, "go", "env", "GOHOSTARCH"))
	run(t, "./package", version, dir, arch)
	return filepath.Join(dir, fmt.Sprintf("headgate-%s-linux-%s", version, arch))
}

// machine is a root directory with a shell, to install packages in. Nothing is
// shared with the machine that the test runs on.
func machine(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"bin", "dev", "sys", "var/lib/dpkg/info", "var/lib/dpkg/updates"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"var/lib/dpkg/status", "var/lib/dpkg/available", "dev/null"} {
		write(t, filepath.Join(root, file), "")
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	run(t, "cp", busybox, filepath.Join(root, "bin/busybox"))
	for _, name := range []string{"sh", "rm", "ls", "[", "test", "echo"} {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// left lists the files below a directory that have to do with us.
func left(t *testing.T, root string) []string {
	t.Helper()
	var found []string
	for _, line := range strings.Split(run(t, "find", root, "-name", "*headgate*", "-not", "-path", "*/var/lib/*"), "\n") {
		if line != "" {
			found = append(found, strings.TrimPrefix(line, root))
		}
	}
	return found
}

// Installed, changed by hand, upgraded, removed: the binary runs, what was
// changed stays, and in the end nothing is left.
func TestPackages(t *testing.T) {
	needRoot(t)
	old, next := packages(t, "0.0.1"), packages(t, "0.0.2")
	again := packages(t, "0.0.2")
	for _, ending := range []string{".deb", ".rpm", ".tar.gz"} {
		if !bytes.Equal([]byte(read(t, next+ending)), []byte(read(t, again+ending))) {
			t.Errorf("%s: the same commit has made other bytes", ending)
		}
	}
	for _, format := range []struct {
		name                    string
		install, upgrade, purge func(t *testing.T, root string)
	}{
		{
			name: "deb",
			install: func(t *testing.T, root string) {
				run(t, "dpkg", "--root="+root, "--force-not-root", "-i", old+".deb")
			},
			upgrade: func(t *testing.T, root string) {
				run(t, "dpkg", "--root="+root, "--force-not-root", "-i", next+".deb")
			},
			purge: func(t *testing.T, root string) {
				run(t, "dpkg", "--root="+root, "--force-not-root", "--purge", "headgate")
			},
		},
		{
			name: "rpm",
			install: func(t *testing.T, root string) {
				run(t, "rpm", "--root", root, "--initdb")
				run(t, "rpm", "--root", root, "-i", "--nodeps", old+".rpm")
			},
			upgrade: func(t *testing.T, root string) {
				run(t, "rpm", "--root", root, "-U", "--nodeps", next+".rpm")
			},
			purge: func(t *testing.T, root string) {
				run(t, "rpm", "--root", root, "-e", "headgate")
			},
		},
	} {
		t.Run(format.name, func(t *testing.T) {
			root := machine(t)
			version := func() string { return run(t, "chroot", root, "/usr/bin/headgate", "version") }
			format.install(t, root)
			if v := version(); !strings.Contains(v, "0.0.1") {
				t.Errorf("installed: %q", v)
			}

			config := filepath.Join(root, "etc/headgate/headgate.yaml")
			const mine = "rules:\n  - port: 8080\n"
			write(t, config, mine)
			format.upgrade(t, root)
			if v := version(); !strings.Contains(v, "0.0.2") {
				t.Errorf("upgraded: %q", v)
			}
			if text := read(t, config); text != mine {
				t.Errorf("the upgrade has changed the configuration: %q", text)
			}
			for _, file := range []string{
				"usr/share/man/man1/headgate.1", "usr/share/bash-completion/completions/headgate",
				"usr/share/fish/vendor_completions.d/headgate.fish", "usr/lib/systemd/system/headgate.service",
			} {
				if read(t, filepath.Join(root, file)) == "" {
					t.Errorf("%s is empty", file)
				}
			}
			format.purge(t, root)
			if found := left(t, root); len(found) != 0 && format.name == "deb" {
				t.Errorf("left: %q", found)
			} else if format.name == "rpm" {
				// What was changed is kept beside.
				for _, f := range found {
					if f != "/etc/headgate" && !strings.HasSuffix(f, ".rpmsave") {
						t.Errorf("left: %s", f)
					}
				}
			}
		})
	}
}

// Of a commit, dpkg takes some for a version and sorts none.
func TestVersionOfPackages(t *testing.T) {
	for _, version := range []string{"a6b21e4", "9d9e7bb", "v1.2", "unknown", ""} {
		dir := t.TempDir()
		out, err := exec.Command("./package", version, dir).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "is not a semantic version") {
			t.Errorf("%q: %v: %s", version, err, out)
		}
		if made, _ := os.ReadDir(dir); len(made) != 0 {
			t.Errorf("%q: made %v", version, made)
		}
	}
}

// The unit is understood, and what it gives away is no more than this. 0 is
// nothing, 10 everything; what is left is the work itself.
func TestUnit(t *testing.T) {
	out := run(t, "systemd-analyze", "security", "--offline=true", "--threshold=35", "systemd/headgate.service")
	t.Log(out[strings.LastIndex(out, "→"):])
	if strings.Contains(out, "Unknown") || strings.Contains(out, "ignoring") {
		t.Errorf("not understood:\n%s", out)
	}
}
