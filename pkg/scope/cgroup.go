package scope

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoCgroup2 means that no cgroup2 hierarchy is mounted.
var ErrNoCgroup2 = errors.New("no cgroup2 hierarchy is mounted, and without one connections can be neither counted nor timed; " +
	"mount one: mount -t cgroup2 cgroup2 /sys/fs/cgroup")

// ErrNoCgroup means that a cgroup no longer exists.
var ErrNoCgroup = errors.New("no such cgroup")

// Cgroup2 returns where the whole cgroup2 hierarchy is mounted, whether it is
// the only one or stands beside version 1 (hybrid). [ErrNoCgroup2] if nowhere.
func Cgroup2() (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("find cgroup2: %w", err)
	}
	defer f.Close()
	return cgroup2In(f)
}

// cgroup2In reads the format of proc_pid_mountinfo(5): ID, parent, device,
// root, mount point, options, optional fields, "-", type, source, options.
func cgroup2In(mountinfo io.Reader) (string, error) {
	lines := bufio.NewScanner(mountinfo)
	lines.Buffer(nil, 1<<20)
	part := ""
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Split(before, " ") // and no other blank
		if !ok || len(fields) < 6 || !strings.HasPrefix(after, "cgroup2 ") {
			continue
		}
		root, point := unescape(fields[3]), unescape(fields[4])
		if root == "/" {
			return point, nil
		}
		part = point
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("find cgroup2: %w", err)
	}
	if part != "" {
		// A bind mount of a subtree, as in a container: all that is visible.
		return part, nil
	}
	return "", ErrNoCgroup2
}

// unescape undoes the octal escapes of blanks and backslashes.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// IsCgroup says whether the cgroup at a path has that ID.
func IsCgroup(path string, id uint64) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Ino == id
}

// CgroupPath returns the directory under the mount point root whose cgroup has
// that ID, which is its inode number. [ErrNoCgroup] when it is gone.
func CgroupPath(root string, id uint64) (string, error) {
	found := ""
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed while we walk
			}
			if errors.Is(err, fs.ErrPermission) {
				return fs.SkipDir // an agent has no rights over the files of others
			}
			return err
		}
		if !d.IsDir() {
			return nil
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			return nil // as above
		}
		if st.Ino == id {
			found = path
			return fs.SkipAll
		}
		if st.Nlink == 2 { // no cgroup is below it: spare reading its many files
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("search cgroup %d: %w", id, err)
	}
	if found == "" {
		return "", fmt.Errorf("%w: %d", ErrNoCgroup, id)
	}
	return found, nil
}
