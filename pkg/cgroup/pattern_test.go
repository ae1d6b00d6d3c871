package cgroup

import (
	"path"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestPattern(t *testing.T) {
	for _, c := range []struct {
		pattern string
		yes, no []string
	}{
		{"system.slice/nginx.service", []string{"system.slice/nginx.service", "/system.slice/nginx.service/"}, []string{"", "system.slice", "system.slice/nginx.service/worker", "system.slice/nginxxservice"}},
		{"/system.slice/*.service/", []string{"system.slice/a.service", "system.slice/.service"}, []string{"system.slice/a/b.service", "a.service"}},
		{"kubepods.slice/**/cri-containerd-*.scope", []string{"kubepods.slice/cri-containerd-1.scope", "kubepods.slice/a/b/c/cri-containerd-x.scope"}, []string{"kubepods.slice/a/b", "kubepods.slice/cri-containerd-1.scope/init", "kubepods/cri-containerd-1.scope"}},
		{"**", []string{"a", "a/b/c"}, []string{"", "/"}},
		{"a/**", []string{"a", "a/b", "a/b/c"}, []string{"b", ""}},
		{"**/**/x", []string{"x", "a/x", "a/b/x"}, []string{"x/a"}},
		{"**/a/**/b", []string{"a/b", "a/a/b/b", "x/a/y/b"}, []string{"b/a", "a"}},
		{`app-foo\x2dbar.service`, nil, []string{`app-foo\x2dbar.service`}},
		{`app-foo\\x2dbar.service`, []string{`app-foo\x2dbar.service`}, nil},
		{"u[0-9]?", []string{"u1x"}, []string{"ua1", "u1"}},
	} {
		p, err := ParsePattern(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		for _, cgroup := range c.yes {
			if !p.Match(cgroup) {
				t.Errorf("%s does not match %q", c.pattern, cgroup)
			}
		}
		for _, cgroup := range c.no {
			if p.Match(cgroup) {
				t.Errorf("%s matches %q", c.pattern, cgroup)
			}
		}
	}
	for _, bad := range []string{"", "/", "a//b", "..", "a/./b", "a**", "[", "a/[x", strings.Repeat("**/a/", 9), strings.Repeat("x", 5000)} {
		if p, err := ParsePattern(bad); err == nil {
			t.Errorf("%.40q: taken for %.40q", bad, p)
		}
	}
}

// Match agrees with a way of matching that is obvious and slow.
func TestPatternAsSlow(t *testing.T) {
	var slow func(pattern, names []string) bool
	slow = func(pattern, names []string) bool {
		if len(pattern) == 0 {
			return len(names) == 0
		}
		if pattern[0] == "**" {
			return slow(pattern[1:], names) || len(names) > 0 && slow(pattern, names[1:])
		}
		if len(names) == 0 {
			return false
		}
		ok, _ := path.Match(pattern[0], names[0])
		return ok && slow(pattern[1:], names[1:])
	}
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.SliceOfN(rapid.SampledFrom([]string{"**", "*", "a", "b", "a*", "?b", "[ab]"}), 1, 8).Draw(t, "pattern")
		names := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "ab", "bb"}), 1, 8).Draw(t, "cgroup")
		p, err := ParsePattern(strings.Join(pattern, "/"))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := p.Match(strings.Join(names, "/")), slow(pattern, names); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

func TestPodUID(t *testing.T) {
	const uid = "1f2e3d4c-0000-4abc-8def-0123456789ab"
	low := strings.ReplaceAll(uid, "-", "_")
	for name, want := range map[string]string{
		"pod" + uid: uid,
		"kubepods-burstable-pod" + low + ".slice":                   uid,
		"kubepods-besteffort-pod" + low + ".slice":                  uid,
		"kubepods-pod" + low + ".slice":                             uid,
		"kubelet-kubepods-burstable-pod" + low + ".slice":           uid,
		"kubepods-pod0123456789abcdef0123456789abcdef.slice":        "0123456789abcdef0123456789abcdef",
		"pod0123456789abcdef0123456789abcdef":                       "0123456789abcdef0123456789abcdef",
		"kubepods-burstable.slice":                                  "",
		"podman.service":                                            "",
		"cri-containerd-0123456789abcdef0123456789abcdef.scope":     "",
		"libpod-0123456789abcdef0123456789abcdef.scope":             "",
		"machine-libpod_pod_0123456789abcdef0123456789abcdef.slice": "",
		"pod" + uid + "x":                                           "",
		"xpod" + uid:                                                "",
		"pod":                                                       "",
	} {
		if got := PodUID(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
