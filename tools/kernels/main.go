// Command kernels runs the tests of the kernel programs on the kernels of
// several Debian releases, each in a virtual machine that is emulated in
// software. It is run in the root of the repository, needs no rights, and
// installs nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
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

// options are what the command line says.
type options struct {
	releases string
	arch     string
	core     bool
	packages string
	tests    string
	table    string
	limit    time.Duration
}

func parse() (o options) {
	flag.StringVar(&o.releases, "debian", "bookworm,trixie,sid", "`releases` of Debian whose newest kernels are taken")
	flag.StringVar(&o.arch, "arch", "amd64", "`architecture` of the guests: amd64 or arm64")
	flag.BoolVar(&o.core, "core", false, "run the part of the tests that takes a minute or two a kernel")
	flag.StringVar(&o.packages, "package", ".", "run the tests only of packages that match this `expression`; ^$ for none")
	flag.StringVar(&o.tests, "run", "", "run these `tests`, as go test -run, instead of those chosen for guests")
	flag.StringVar(&o.table, "table", "", "write what each kernel has into this `document`")
	flag.DurationVar(&o.limit, "timeout", 3*time.Hour, "most that one kernel may take")
	flag.Parse()
	return o
}

func run(ctx context.Context) error {
	o := parse()
	packages, err := regexp.Compile(o.packages)
	if err != nil {
		return fmt.Errorf("-package: %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	a := archive{dir: filepath.Join(cache, "headgate", "kernels"), arch: o.arch}
	m, err := a.machine(ctx)
	if err != nil {
		return err
	}
	var kernels []kernel
	for suite := range strings.SplitSeq(o.releases, ",") {
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
	jobs, err := builder{arch: o.arch, dir: tmp}.jobs(ctx, choice{core: o.core, packages: packages, tests: o.tests})
	if err != nil {
		return err
	}
	// As many at a time as there are CPUs: a guest keeps one busy.
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	var out sync.Mutex
	told := make([]string, len(kernels))
	failed := make([]error, len(kernels))
	var group sync.WaitGroup
	for i, k := range kernels {
		free <- struct{}{}
		group.Go(func() {
			say := &labeled{label: k.series() + " | ", out: os.Stdout, mu: &out}
			told[i], failed[i] = test(ctx, m, k, jobs, filepath.Join(tmp, "initrd-"+k.suite), o.limit, say)
			<-free
		})
	}
	group.Wait()
	var found table
	for i, k := range kernels {
		if failed[i] == nil {
			failed[i] = found.add(k, told[i])
		}
		if failed[i] != nil {
			failed[i] = fmt.Errorf("on Linux %s (Debian %s): %w", k.name, k.suite, failed[i])
		}
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	if o.table != "" {
		return found.write(o.table)
	}
	return nil
}

// test runs jobs on a kernel.
func test(ctx context.Context, m machine, k kernel, jobs []job, initrd string, limit time.Duration, out io.Writer) (facts string, err error) {
	begin := time.Now()
	if err := m.pack(k, jobs, initrd); err != nil {
		return "", fmt.Errorf("file system of the guest: %w", err)
	}
	fmt.Fprintf(out, "##### Linux %s, of Debian %s\n", k.name, k.suite)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	facts, err = m.boot(ctx, k, initrd, out)
	verdict := "ok"
	if err != nil {
		verdict = "FAIL"
	}
	fmt.Fprintf(out, "##### Linux %s: %s in %v\n", k.name, verdict, time.Since(begin).Round(time.Second))
	return facts, err
}

// labeled says from whom the lines are that several write. Each Write is a line.
type labeled struct {
	label string
	out   io.Writer
	mu    *sync.Mutex
}

func (l *labeled) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := io.WriteString(l.out, l.label); err != nil {
		return 0, err
	}
	return l.out.Write(line)
}
