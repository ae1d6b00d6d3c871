// Package report is what the files of results have in common: what they were
// measured on, and how they are read and written.
package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is what something was measured on, and when.
type Machine struct {
	Date     string            `json:"date"`
	Kernel   string            `json:"kernel"`
	CPU      string            `json:"cpu"`
	CPUs     int               `json:"cpus"`
	Go       string            `json:"go"`
	Versions map[string]string `json:"versions"` // of the programs that took part
}

// versions are the commands that print the version of a program.
var versions = map[string][]string{
	"HAProxy":    {"/usr/sbin/haproxy", "-v"},
	"PostgreSQL": {"psql", "--version"},
	"gunicorn":   {"gunicorn", "--version"},
	"nft":        {"/usr/sbin/nft", "--version"},
	"nginx":      {"/usr/sbin/nginx", "-v"},
	"redis":      {"redis-server", "--version"},
}

// ThisMachine describes this machine now, and the programs of these names as far
// as it has them.
func ThisMachine(programs ...string) Machine {
	m := Machine{
		Date: time.Now().UTC().Format(time.RFC3339), Kernel: kernel(), CPU: cpu(), CPUs: runtime.NumCPU(),
		Go: runtime.Version(), Versions: map[string]string{},
	}
	for _, name := range programs {
		command := versions[name]
		if command == nil {
			continue
		}
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		if line, _, _ := strings.Cut(string(out), "\n"); err == nil {
			m.Versions[name] = strings.TrimSpace(line)
		}
	}
	return m
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

func cpu() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Read reads a file of results into v.
func Read(path string, v any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Write writes v as a file of results.
func Write(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
