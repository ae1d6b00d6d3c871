// Command kernels runs the tests of the kernel programs on the kernels of
// several Debian releases, each in a virtual machine that is emulated in
// software. It is run in the root of the repository and needs no rights.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	suitesOf := flag.String("debian", "bookworm,trixie,sid", "releases whose kernels are taken")
	arch := flag.String("arch", "amd64", "architecture of the guests: amd64 or arm64")
	core := flag.Bool("core", false, "run a part that takes about half a minute a kernel")
	only := flag.String("package", "", "run only the packages that match")
	tests := flag.String("run", "", "run only the tests that match")
	limit := flag.Duration("timeout", 15*time.Minute, "most that one kernel may take")
	flag.Parse()

	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	a := archive{dir: filepath.Join(cache, "headgate", "kernels"), arch: *arch}
	m, err := machineOf(*arch, "/bin/busybox")
	if err != nil {
		return err
	}
	var kernels []kernel
	for suite := range strings.SplitSeq(*suitesOf, ",") {
		if err := os.MkdirAll(filepath.Join(a.dir, suite+"-"+a.arch), 0o755); err != nil {
			return err
		}
		k, err := a.latest(ctx, suite)
		if err != nil {
			return err
		}
		kernels = append(kernels, k)
	}

	tmp, err := os.MkdirTemp("", "headgate-kernels-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	jobs, err := build(ctx, builder{arch: *arch, dir: tmp}, *core, *only, *tests)
	if err != nil {
		return err
	}
	var failed []error
	for _, k := range kernels {
		if err := test(ctx, m, k, jobs, filepath.Join(tmp, "initrd"), *limit); err != nil {
			failed = append(failed, fmt.Errorf("%s (%s): %w", k.name, k.suite, err))
		}
	}
	return errors.Join(failed...)
}

func build(ctx context.Context, b builder, core bool, only, tests string) ([]job, error) {
	pick, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	var jobs []job
	for _, s := range suites {
		run := s.full
		if core {
			run = s.core
		}
		if tests != "" {
			run = tests
		}
		if run == "" || !pick.MatchString(s.dir) {
			continue
		}
		j, err := b.tests(ctx, s, run)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, j)
	}
	agent, err := b.program(ctx, "cmd/agent")
	agent.args = "version"
	return append([]job{agent}, jobs...), err
}

func test(ctx context.Context, m machine, k kernel, jobs []job, initrd string, limit time.Duration) error {
	begin := time.Now()
	if err := m.pack(k, jobs, initrd); err != nil {
		return fmt.Errorf("file system of the guest: %w", err)
	}
	fmt.Printf("##### Linux %s, of Debian %s\n", k.name, k.suite)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := m.boot(ctx, k, initrd, os.Stdout)
	fmt.Printf("##### Linux %s: %v in %v\n", k.name, verdict(err), time.Since(begin).Round(time.Second))
	return err
}

func verdict(err error) string {
	if err != nil {
		return "FAIL"
	}
	return "ok"
}
