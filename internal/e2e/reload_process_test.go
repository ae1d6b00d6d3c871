package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file as Kubernetes mounts it: each version in a directory of its own, and a
// link in the middle of the way that is swapped.
type mounted struct {
	dir     string
	version int
}

func (m *mounted) name() string { return filepath.Join(m.dir, "headgate.yaml") }

func (m *mounted) write(t *testing.T, yaml string) {
	t.Helper()
	m.version++
	version := fmt.Sprintf("..%d", m.version)
	err := os.Mkdir(filepath.Join(m.dir, version), 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(m.dir, version, "headgate.yaml"), []byte(yaml), 0o644)
	}
	if err == nil {
		err = os.Symlink(version, filepath.Join(m.dir, "..data_tmp"))
	}
	if err == nil {
		err = os.Rename(filepath.Join(m.dir, "..data_tmp"), filepath.Join(m.dir, "..data"))
	}
	if err == nil && m.version == 1 {
		err = os.Symlink("..data/headgate.yaml", m.name())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Flags over the environment over the file, at the start and after each reload;
// and a file whose directory is swapped.
func TestPrecedence(t *testing.T) {
	srv, cli, to := hosts(t)
	keep(t, srv, "tcp", ":8080")
	program := buildAgent(t)
	for _, tt := range []struct {
		env, flag, file string
		refused         bool
	}{
		{"", "", "observe", false},
		{"enforce", "", "observe", true},
		{"observe", "enforce", "observe", true},
		{"enforce", "observe", "enforce", false},
	} {
		t.Run(fmt.Sprintf("%+v", tt), func(t *testing.T) {
			m := &mounted{dir: t.TempDir()}
			file := func(port string) string {
				return "listen: 127.0.0.1:19464\nmode: " + tt.file + "\n" + strings.Replace(closed, "8080", port, 1)
			}
			m.write(t, file("8081"))
			socket := filepath.Join(t.TempDir(), "s")
			args := []string{"run", "-c", m.name(), "--state", stateDir()}
			if tt.flag != "" {
				args = append(args, "--mode", tt.flag)
			}
			cmd := srv.Command(t.Context(), program, args...)
			cmd.Env = append(os.Environ(), "HEADGATE_MODE="+tt.env, "HEADGATE_SOCKET="+socket)
			p := startProcess(t, program, cmd, srv)
			status := func() (string, error) { return p.ask("status", "--listen", "127.0.0.1:19464") }
			await(t, "it answers where the file says", func() (any, bool) {
				out, err := status()
				return out, err == nil
			})
			m.write(t, file("8080"))
			await(t, "another file is in force", func() (any, bool) {
				out, err := status()
				return out, err == nil && strings.Contains(out, "8080")
			})
			if got := knock(t, cli, to); got != tt.refused {
				t.Errorf("refused: %v, want %v", got, tt.refused)
			}
			if _, err := os.Lstat(socket); err != nil {
				t.Errorf("the socket that the environment names: %v", err)
			}
			if code := p.stop(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
