package scope

import (
	"errors"
	"strings"
	"testing"
)

const (
	unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
	tmpfs   = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
	cpu     = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	beside  = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
	bound   = "77 60 0:38 /kubepods/pod1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
)

func TestCgroup2In(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"version 2 alone", unified, "/sys/fs/cgroup"},
		{"hybrid", tmpfs + cpu + beside, "/sys/fs/cgroup/unified"},
		{"version 1 alone", tmpfs + cpu, ""},
		{"no mounts", "", ""},
		{"a part of it, in a container", cpu + bound, "/sys/fs/cgroup"},
		{"the whole before a part", beside + bound, "/sys/fs/cgroup/unified"},
		{"a part before the whole", bound + beside, "/sys/fs/cgroup/unified"},
		{"the first of two", beside + unified, "/sys/fs/cgroup/unified"},
		{"many optional fields", "1 2 0:3 / /cg rw shared:1 master:2 propagate_from:3 unbindable - cgroup2 none rw\n", "/cg"},
		{"no optional field", "1 2 0:3 / /cg rw - cgroup2 none rw\n", "/cg"},
		{"escaped", `1 2 0:3 / /mnt/a\040b\011c\012d\134e\043f rw - cgroup2 none rw` + "\n", "/mnt/a b\tc\nd\\e#f"},
		{"a backslash that escapes nothing", `1 2 0:3 / /mnt/\0\9\\\777 rw - cgroup2 none rw` + "\n", `/mnt/\0\9\\\777`},
		{"a directory whose name looks like the end", `1 2 0:3 / /mnt/\040-\040cgroup2 rw - ext4 /dev/x rw` + "\n", ""},
		{"a type that begins alike", "1 2 0:3 / /cg rw - cgroup2x none rw\n", ""},
		{"no newline at the end", strings.TrimSuffix(unified, "\n"), "/sys/fs/cgroup"},
		{"cut short", "1 2 0:3 / /cg - cgroup2 none rw\n", ""},
		{"garbage", " - cgroup2 \n\nx\n - \n", ""},
		{"a long line before", "1 2 0:3 / /" + strings.Repeat("x", 1<<17) + " rw - overlay overlay rw\n" + unified, "/sys/fs/cgroup"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := cgroup2In(strings.NewReader(tt.text))
			if got != tt.want || (tt.want == "") != errors.Is(err, ErrNoCgroup2) {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

type brokenReader struct{ err error }

func (r brokenReader) Read([]byte) (int, error) { return 0, r.err }

func TestCgroup2InUnreadable(t *testing.T) {
	broken := errors.New("broken")
	if _, err := cgroup2In(brokenReader{broken}); !errors.Is(err, broken) {
		t.Errorf("%v, want what the reader said", err)
	}
	if _, err := cgroup2In(strings.NewReader(strings.Repeat("x", 1<<21))); err == nil || errors.Is(err, ErrNoCgroup2) {
		t.Errorf("a line without end: %v, want an error of its own", err)
	}
}

// escape writes a path as the kernel does, proc_pid_mountinfo(5).
func escape(path string) string {
	return strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(path)
}

func FuzzCgroup2In(f *testing.F) {
	for _, text := range []string{"", unified, tmpfs + cpu + beside, cpu + bound, " - cgroup2 \n"} {
		f.Add(text, "sys/fs/cgroup")
	}
	f.Fuzz(func(t *testing.T, text, point string) {
		point = "/" + point // they are absolute
		path, err := cgroup2In(strings.NewReader(text))
		if err != nil && path != "" {
			t.Errorf("%q, %v", path, err)
		}
		if strings.Contains(text, "cgroup2") || len(text) > 1<<20 || len(point) > 1<<16 {
			return
		}
		if path != "" {
			t.Errorf("found %q where there is none", path)
		}
		// It is found wherever it is mounted, behind whatever lines.
		text += "\n1 2 0:3 / " + escape(point) + " rw shared:1 - cgroup2 none rw\n"
		if path, err := cgroup2In(strings.NewReader(text)); path != point || err != nil {
			t.Errorf("found %q, %v; want %q", path, err, point)
		}
	})
}
