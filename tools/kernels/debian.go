package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// keyring has the keys of every Debian release; apt checks all that it fetches
// against them.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// mirror is used where apt knows of none.
const mirror = "http://deb.debian.org/debian"

// stale is when it is asked again which kernel is a release's newest.
const stale = 24 * time.Hour

// kernel is an unpacked kernel of Debian: a directory with vmlinuz, and the
// modules under lib/modules, uncompressed and with their index.
type kernel struct {
	suite string // of Debian, as "trixie"
	name  string // as uname -r says
	dir   string
}

func (k kernel) image() string   { return filepath.Join(k.dir, "vmlinuz") }
func (k kernel) modules() string { return filepath.Join("lib", "modules", k.name) }

// series is the first two numbers of the kernel's name, to show.
func (k kernel) series() string { return regexp.MustCompile(`^\d+\.\d+`).FindString(k.name) }

// archive fetches kernels from Debian and keeps them.
type archive struct {
	dir  string // the cache
	arch string // as Debian names it
}

// latest returns the newest cloud kernel of a release. The mirror is asked for
// it once a day; when it does not answer, what was fetched before has to do.
func (a archive) latest(ctx context.Context, suite string) (kernel, error) {
	dir := filepath.Join(a.dir, suite+"-"+a.arch)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return kernel{}, err
	}
	kept, keptErr := a.kept(suite, dir)
	if info, err := os.Stat(filepath.Join(dir, "current")); err == nil && keptErr == nil && time.Since(info.ModTime()) < stale {
		return kept, nil
	}
	k, err := a.fetch(ctx, suite, dir)
	if err != nil && keptErr == nil {
		fmt.Fprintf(os.Stderr, "kernels: %v; going on with %s\n", err, kept.name)
		return kept, nil
	}
	return k, err
}

// busybox returns a busybox that guests can run. That of this machine does,
// unless they are of another architecture.
func (a archive) busybox(ctx context.Context) (string, error) {
	if a.arch == runtime.GOARCH {
		return exec.LookPath("busybox")
	}
	dir := filepath.Join(a.dir, "busybox-"+a.arch)
	path := filepath.Join(dir, "bin", "busybox")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	apt, err := newApt(ctx, filepath.Join(dir, "apt"), "bookworm", a.arch)
	if err != nil {
		return "", err
	}
	return path, apt.unpack(ctx, []string{"busybox-static"}, dir)
}

// kept returns the kernel that was fetched last.
func (a archive) kept(suite, dir string) (kernel, error) {
	name, err := os.ReadFile(filepath.Join(dir, "current"))
	if err != nil {
		return kernel{}, err
	}
	k := kernel{suite: suite, name: string(name), dir: filepath.Join(dir, string(name))}
	_, err = os.Stat(k.image())
	return k, err
}

func (a archive) fetch(ctx context.Context, suite, dir string) (kernel, error) {
	k, err := a.download(ctx, suite, dir)
	if err != nil {
		return k, fmt.Errorf("kernel of Debian %s, %s: %w", suite, a.arch, err)
	}
	return k, os.WriteFile(filepath.Join(dir, "current"), []byte(k.name), 0o644)
}

func (a archive) download(ctx context.Context, suite, dir string) (kernel, error) {
	apt, err := newApt(ctx, filepath.Join(dir, "apt"), suite, a.arch)
	if err != nil {
		return kernel{}, err
	}
	packages, err := apt.kernelPackages(ctx)
	if err != nil {
		return kernel{}, err
	}
	k := kernel{suite: suite, name: strings.TrimPrefix(packages[0], "linux-image-")}
	k.dir = filepath.Join(dir, k.name)
	if _, err := os.Stat(k.image()); err == nil {
		return k, nil
	}
	fmt.Fprintf(os.Stderr, "kernels: fetching %s of Debian %s\n", k.name, suite)
	tmp, err := os.MkdirTemp(dir, "new-")
	if err != nil {
		return k, err
	}
	defer os.RemoveAll(tmp)
	if err := apt.unpack(ctx, packages, tmp); err != nil {
		return k, err
	}
	made := kernel{name: k.name, dir: tmp}
	if err := made.arrange(ctx); err != nil {
		return k, err
	}
	// Complete or not at all.
	return k, os.Rename(tmp, k.dir)
}

// apt is a configuration of apt that shares nothing with the machine's but the
// proxy and the mirror, and installs nothing.
type apt struct {
	arch    string
	options []string
}

func newApt(ctx context.Context, dir, suite, arch string) (*apt, error) {
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	status, sources := filepath.Join(dir, "status"), filepath.Join(dir, "sources.list")
	text := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, configuredMirror(ctx), suite)
	err := errors.Join(os.WriteFile(status, nil, 0o644), os.WriteFile(sources, []byte(text), 0o644))
	if err != nil {
		return nil, err
	}
	a := &apt{arch: arch}
	for _, o := range []string{
		"Dir::State::Lists=" + filepath.Join(dir, "lists"),
		"Dir::State::status=" + status,
		"Dir::Cache=" + filepath.Join(dir, "cache"),
		"Dir::Etc::sourcelist=" + sources,
		"Dir::Etc::sourceparts=/dev/null",
		"APT::Architecture=" + arch,
		"APT::Architectures=" + arch,
		"APT::Sandbox::User=root", // the cache may be where nobody else can write
		"Acquire::Languages=none",
		"Acquire::Retries=2",
		"Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
	} {
		a.options = append(a.options, "-o", o)
	}
	_, err = a.run(ctx, dir, "apt-get", "-qq", "update", "--error-on=any")
	return a, err
}

// configuredMirror is where this machine's apt gets Debian from.
func configuredMirror(ctx context.Context) string {
	out, _ := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)",
		"Created-By: Packages", "Origin: Debian", "Label: Debian").Output()
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if first == "" {
		return mirror
	}
	return first
}

func (a *apt) run(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, append(slices.Clone(a.options), args...)...)
	cmd.Dir = dir
	return output(cmd)
}

// kernelPackages returns what makes up the newest cloud kernel, the one that
// is named like it first. Some releases have image and modules in one package.
func (a *apt) kernelPackages(ctx context.Context) ([]string, error) {
	meta := "linux-image-cloud-" + a.arch
	out, err := a.run(ctx, "/", "apt-cache", "depends", "--recurse", "--important", meta)
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		name := strings.TrimSpace(line)
		if name != meta && regexp.MustCompile(`^linux-(image|binary|modules)-\d\S*$`).MatchString(name) {
			found = append(found, name)
		}
	}
	slices.Sort(found) // image before modules; binary is what image is not
	i := slices.IndexFunc(found, func(name string) bool { return strings.HasPrefix(name, "linux-image-") })
	if i < 0 {
		return nil, fmt.Errorf("%s depends on no kernel: %q", meta, found)
	}
	found[0], found[i] = found[i], found[0]
	return found, nil
}

// unpack fetches packages and unpacks them into dir.
func (a *apt) unpack(ctx context.Context, packages []string, dir string) error {
	debs, err := os.MkdirTemp(dir, "debs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(debs)
	if _, err := a.run(ctx, debs, "apt-get", append([]string{"-qq", "download"}, packages...)...); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if _, err := output(exec.CommandContext(ctx, "dpkg-deb", "-x", f, dir)); err != nil {
			return err
		}
	}
	return nil
}

// arrange brings an unpacked kernel into the shape of [kernel]: releases differ
// in where things are, and in whether modules are compressed.
func (k kernel) arrange(ctx context.Context) error {
	usr := filepath.Join(k.dir, "usr", "lib", "modules")
	if _, err := os.Stat(usr); err == nil {
		if err := os.MkdirAll(filepath.Join(k.dir, "lib"), 0o755); err != nil {
			return err
		}
		if err := os.Rename(usr, filepath.Join(k.dir, "lib", "modules")); err != nil {
			return err
		}
	}
	modules := filepath.Join(k.dir, k.modules())
	var compressed []string
	err := filepath.WalkDir(modules, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".ko.xz") {
			compressed = append(compressed, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(compressed, 500) {
		if _, err := output(exec.CommandContext(ctx, "xz", append([]string{"--decompress", "--threads=0"}, some...)...)); err != nil {
			return err
		}
	}
	if _, err := output(exec.CommandContext(ctx, "depmod", "-b", k.dir, k.name)); err != nil {
		return err
	}
	for _, from := range []string{filepath.Join(k.dir, "boot", "vmlinuz-"+k.name), filepath.Join(modules, "vmlinuz")} {
		err := os.Rename(from, k.image())
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return fmt.Errorf("no vmlinuz in the packages of %s", k.name)
}

// output runs a command; its error has what the command said.
func output(cmd *exec.Cmd) ([]byte, error) {
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, strings.TrimSpace(said.String()))
	}
	return out.Bytes(), nil
}
