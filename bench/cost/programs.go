package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"headgate/internal/lab"
)

// Program is what one program took, by the kernel's own statistics, which are
// part of what they measure.
type Program struct {
	Name        string  `json:"name"`
	While       string  `json:"while"`
	Goal        float64 `json:"goal_ns,omitempty"`
	Runs        uint64  `json:"runs"`
	Nanoseconds float64 `json:"ns_per_run"`
}

// programs lets every program do each of its jobs and reads its statistics.
func (b *bench) programs(ctx context.Context, r *Report) (err error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("statistics of programs: %w", err)
	}
	defer func() { err = errors.Join(err, closing(stats)) }()
	srv, err := b.srv.StartNginx(ctx, lab.Nginx{Port: port})
	if err != nil {
		return err
	}
	defer srv.Stop()

	r.Programs = nil
	refusing := func() error {
		_, err := b.perSecond(ctx, 2, func() (func() error, func(), error) {
			return func() error { return refusedOnce(b.srv.Addr4, port) }, func() {}, nil
		})
		return err
	}
	passing := func() error {
		_, err := b.perSecond(ctx, 2, func() (func() error, func(), error) {
			return func() error { return refusedOnce(b.srv.Addr4, port+1) }, func() {}, nil
		})
		return err
	}
	connecting := func() error {
		_, err := b.perSecond(ctx, 8, b.aborter)
		return err
	}
	requesting := func() error {
		_, err := b.perSecond(ctx, clients, b.requester(port))
		return err
	}
	for _, job := range []struct {
		while string
		limit int
		run   func() error
		goals map[string]float64
	}{
		{"SYNs are refused", 0, refusing, map[string]float64{"headgate_lookup": 100}},
		{"SYNs go to another port", 0, passing, nil},
		{"connecting and closing", 60000, connecting, map[string]float64{"headgate_lookup": 300}},
		{"requests on kept-alive connections", 60000, requesting, nil},
	} {
		a, err := b.protect(job.limit)
		if err != nil {
			return err
		}
		before, err := programStats(os.Getpid())
		if err == nil {
			err = job.run()
		}
		after, err2 := programStats(os.Getpid())
		if err := errors.Join(err, err2, a.Remove()); err != nil {
			return err
		}
		for name, s := range after {
			runs, ns := s.runs-before[name].runs, s.ns-before[name].ns
			if runs < 1000 || name == "headgate_adopt" {
				continue // not its job
			}
			r.Programs = append(r.Programs, Program{Name: name, While: job.while, Goal: job.goals[name], Runs: runs, Nanoseconds: float64(ns) / float64(runs)})
			fmt.Fprintf(os.Stderr, "  %s while %s: %.0f ns\n", name, job.while, float64(ns)/float64(runs))
		}
	}
	return nil
}

type runStats struct{ runs, ns uint64 }

// programStats reads the statistics of headgate's programs that a process has: other
// agents of the host have some of the same names.
func programStats(pid int) (map[string]runStats, error) {
	ids, err := programsOf(pid)
	if err != nil {
		return nil, err
	}
	stats := make(map[string]runStats)
	for id := range ids {
		p, err := ebpf.NewProgramFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		info, err := p.Info()
		s, err2 := p.Stats()
		if err := errors.Join(err, err2, p.Close()); err != nil {
			return nil, err
		}
		if strings.HasPrefix(info.Name, "headgate") {
			sum := stats[info.Name]
			sum.runs += s.RunCount
			sum.ns += uint64(s.Runtime.Nanoseconds())
			stats[info.Name] = sum
		}
	}
	return stats, nil
}

// programsOf returns the programs that a process has open, or has links to.
func programsOf(pid int) (map[ebpf.ProgramID]bool, error) {
	dir := fmt.Sprintf("/proc/%d/fdinfo", pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	ids := make(map[ebpf.ProgramID]bool)
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		for line := range strings.Lines(string(text)) {
			value, ok := strings.CutPrefix(line, "prog_id:")
			if !ok {
				continue
			}
			id, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%s/%s: %w", dir, f.Name(), err)
			}
			ids[ebpf.ProgramID(id)] = true
		}
	}
	return ids, nil
}

func closing(c io.Closer) error { return c.Close() }
