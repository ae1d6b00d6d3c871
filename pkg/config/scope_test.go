package config

import "testing"

// Whatever a cgroup is called, its scope is shown as text, and as no other one.
func TestScopeOfStrangeCgroup(t *testing.T) {
	for path, want := range map[string]string{
		`system.slice/dev-sda1\x2d.device`: `cgroup:system.slice/dev-sda1\x2d.device`,
		"a/ümlaut, 50 %":                   "cgroup:a/ümlaut, 50 %",
		"a/\x1b[2Jb":                       `cgroup:"a/\x1b[2Jb"`,
		"a/\xff":                           `cgroup:"a/\xff"`,
		`"a/\xff"`:                         `cgroup:"\"a/\\xff\""`,
		"a/b\u202ec":                       `cgroup:"a/b\u202ec"`,
	} {
		if got := (Scope{Cgroup: path}).String(); got != want {
			t.Errorf("%q is shown as %s, want %s", path, got, want)
		}
	}
}
