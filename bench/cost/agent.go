package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// AgentCost is what an agent takes that protects so many idle targets, with
// windows of 100 ms.
type AgentCost struct {
	Targets   int     `json:"targets"`
	CPU       float64 `json:"cpu_of_a_core"` // 0.02 is 2 % of one core
	ResidentM float64 `json:"resident_mib"`
	MapsM     float64 `json:"maps_mib"` // what the kernel has of it, beside that
	CPUGoal   float64 `json:"cpu_goal,omitempty"`
	RSSGoal   float64 `json:"resident_goal_mib,omitempty"`
}

// agents measures the real program with more and more targets.
func (b *bench) agents(ctx context.Context, r *Report) error {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program, err := buildAgent(ctx, dir)
	if err != nil {
		return err
	}
	r.Agents = nil
	for _, n := range []int{1, 100, 1000} {
		c, err := b.agentWith(ctx, program, dir, n)
		if err != nil {
			return fmt.Errorf("%d targets: %w", n, err)
		}
		if n == 1000 {
			c.CPUGoal, c.RSSGoal = 0.02, 40
		}
		fmt.Fprintf(os.Stderr, "  %d targets: %.1f %% of a core, %.0f MiB, and maps of %.0f MiB\n", c.Targets, 100*c.CPU, c.ResidentM, c.MapsM)
		r.Agents = append(r.Agents, c)
	}
	return nil
}

// buildAgent builds the real program into dir.
func buildAgent(ctx context.Context, dir string) (program string, err error) {
	program = filepath.Join(dir, "headgate")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./cmd/agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as in the Makefile
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return program, nil
}

func (b *bench) agentWith(ctx context.Context, program, dir string, targets int) (c AgentCost, err error) {
	c.Targets = targets
	ports := make([]string, targets)
	for i := range ports {
		ports[i] = strconv.Itoa(20000 + i)
	}
	stop, pid, err := b.startAgent(ctx, program, dir, fmt.Sprintf("rules:\n  - name: many\n    ports: [%s]\n", strings.Join(ports, ", ")))
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	time.Sleep(3 * time.Second) // what it does at its start is another matter
	c.CPU, c.ResidentM, c.MapsM, err = b.taken(pid)
	return c, err
}

// mapMemory is what the kernel says that the maps of a process take, in MiB.
func mapMemory(pid int) (float64, error) {
	dir := fmt.Sprintf("/proc/%d/fdinfo", pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	taken := make(map[string]float64) // by the map's ID
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		fields := make(map[string]string)
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			fields[name] = strings.TrimSpace(value)
		}
		if id := fields["map_id"]; id != "" {
			if taken[id], err = strconv.ParseFloat(fields["memlock"], 64); err != nil {
				return 0, fmt.Errorf("map %s: %w", id, err)
			}
		}
	}
	var sum float64
	for _, bytes := range taken {
		sum += bytes
	}
	return sum / (1 << 20), nil
}

// cpuTime is what a process has used, of user and system, see proc(5).
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100, nil // USER_HZ
}

// resident is the resident set of a process, in MiB.
func resident(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, errors.New("no VmRSS")
}
