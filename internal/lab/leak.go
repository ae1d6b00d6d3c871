package lab

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Main is for TestMain: it runs the tests of a package and fails it when they
// leave behind a namespace, cgroup, link, file descriptor, child process, or
// an entry below one of dirs (directories of a BPF file system). A dir need
// not exist.
//
//	func TestMain(m *testing.M) { os.Exit(lab.Main(m, "/sys/fs/bpf/headgate-test")) }
func Main(m interface{ Run() int }, dirs ...string) int {
	if handled, code := ServerMain(os.Args[1:]); handled {
		return code
	}
	// The runtime opens its poller with the first pipe or socket, and keeps it.
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
	before := take(dirs)
	code := m.Run()

	// What was closed may take a moment to go: network namespaces end in a
	// kernel thread, children are reaped by goroutines.
	var leaks []string
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		leaks = before.leaks(take(dirs))
		if len(leaks) == 0 || time.Now().After(deadline) {
			break
		}
	}
	for _, leak := range leaks {
		fmt.Fprintln(os.Stderr, "leaked by the tests of this package:", leak)
	}
	if len(leaks) > 0 && code == 0 {
		return 1
	}
	return code
}

// inventory is what the process holds, one readable line for each thing.
type inventory map[string]bool

func take(dirs []string) inventory {
	inv := inventory{}
	self := func(pid int) bool { return pid == os.Getpid() }
	for _, path := range ours(nsDir, self) {
		inv["network namespace "+path] = true
	}
	for _, path := range ours(os.TempDir(), self) {
		inv["directory "+path] = true
	}
	if root, err := cgroupRoot(); err == nil {
		for _, path := range ours(root.Path, self) {
			inv["cgroup "+path] = true
		}
	}
	if links, err := net.Interfaces(); err == nil {
		for _, link := range links {
			inv["link "+link.Name] = true
		}
	}
	for _, fd := range descriptors() {
		inv["file descriptor "+fd] = true
	}
	for _, child := range children() {
		inv["process "+child] = true
	}
	for _, dir := range dirs {
		_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && path != dir {
				inv["entry "+path] = true
			}
			return nil
		})
	}
	return inv
}

func (before inventory) leaks(after inventory) []string {
	var found []string
	for thing := range after {
		if !before[thing] {
			found = append(found, thing)
		}
	}
	slices.Sort(found)
	return found
}

func descriptors() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var open []string
	for _, e := range entries {
		// The descriptor of the listing itself is gone by now, and its link too.
		to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err != nil {
			continue
		}
		open = append(open, e.Name()+" "+to)
	}
	return open
}

// children lists the processes that this one started and did not reap.
func children() []string {
	var found []string
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		// pid (name) state ppid ...; the name may hold anything.
		head, tail, ok := cutLast(string(stat), ") ")
		fields := strings.Fields(tail)
		if ok && len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			found = append(found, head+")")
		}
	}
	return found
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
