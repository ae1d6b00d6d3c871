package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// job is one program that a guest runs.
type job struct {
	dir     string // of its package, within the repository; where it runs
	program string // the static binary
	args    string // for a shell
}

// suite is tests of one package.
type suite struct {
	dir  string
	full string // which tests, as go test -run
	core string // the same where time is short; "": none
}

var suites = []suite{
	{dir: "pkg/scope", full: "."},
	{dir: "pkg/loader", full: "."},
	{dir: "pkg/netfilter", full: "."},
	{dir: "pkg/device", full: "."},
	{dir: "pkg/pace", full: "."},
	{dir: "internal/e2e", full: "."},
}

// builder compiles for guests.
type builder struct {
	arch string // as Go names it, and Debian too
	dir  string // for the binaries
}

func (b builder) tests(ctx context.Context, s suite, run string) (job, error) {
	j := job{dir: s.dir, program: filepath.Join(b.dir, filepath.Base(s.dir)+".test")}
	j.args = fmt.Sprintf("-test.v -test.timeout 10m -test.run '%s'", run)
	return j, b.goBuild(ctx, "test", "-c", "-o", j.program, "./"+s.dir)
}

func (b builder) program(ctx context.Context, dir string) (job, error) {
	j := job{dir: dir, program: filepath.Join(b.dir, filepath.Base(dir))}
	return j, b.goBuild(ctx, "build", "-o", j.program, "./"+dir)
}

func (b builder) goBuild(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args[0])
	cmd.Args = append(cmd.Args, "-trimpath", "-ldflags=-s -w")
	cmd.Args = append(cmd.Args, args[1:]...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+b.arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
