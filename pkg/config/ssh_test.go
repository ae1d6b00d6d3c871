package config

import (
	"testing"
	"testing/fstest"
)

func TestSSHPort(t *testing.T) {
	proc := fstest.MapFS{
		"30/stat":    {Data: []byte("30 (sudo) S 20 30 30 0")},
		"30/environ": {Data: []byte("PATH=/bin\x00XSSH_CONNECTION=1 2 3 4\x00")},
		"20/stat":    {Data: []byte("20 (a) b) c) S 10 30 30 0")},
		"20/environ": {Data: []byte("PATH=/bin\x00SSH_CONNECTION=192.0.2.1 50000 192.0.2.2 2222\x00")},
		"10/stat":    {Data: []byte("10 (sshd) S 1 10 10 0")},
		"40/stat":    {Data: []byte("40 (loop) S 40 30 30 0")},
		"50/stat":    {Data: []byte("50")},
	}
	for name, tt := range map[string]struct {
		env    string
		parent int
		want   uint16
	}{
		"own variable":      {"2001:db8::1 50000 2001:db8::2 22", 1, 22},
		"not ssh":           {"", 1, 0},
		"behind sudo":       {"", 30, 2222},
		"none above":        {"", 10, 0},
		"its own parent":    {"", 40, 0},
		"stat cut off":      {"", 50, 0},
		"gone":              {"", 60, 0},
		"not a connection":  {"x", 10, 0},
		"port out of range": {"a 1 b 70000", 10, 0},
	} {
		t.Run(name, func(t *testing.T) {
			lookup := func(string) (string, bool) { return tt.env, tt.env != "" }
			if got := sshPort(lookup, proc, tt.parent); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}
