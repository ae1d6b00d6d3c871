package control

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFind(t *testing.T) {
	targets := []Name{
		{"shop", "host", 8080}, {"shop", "host", 8443}, {"blue", "netns:blue", 8080}, {"pool", "cgroup:a/b.service", 5432}, {"443", "host", 9000},
	}
	for text, want := range map[string]struct {
		found []Name
		err   error
		says  string
	}{
		"8443":                    {targets[1:2], nil, ""},
		"shop":                    {targets[:2], nil, ""},
		"host/8080":               {targets[:1], nil, ""},
		"shop:8443":               {targets[1:2], nil, ""},
		"shop:1":                  {nil, ErrUnknown, "protected: cgroup:a/b.service/5432, host/8080, host/8443, host/9000, netns:blue/8080"},
		"cgroup:a/b.service/5432": {targets[3:4], nil, ""},
		"8080":                    {[]Name{targets[0], targets[2]}, ErrAmbiguous, "host/8080 or netns:blue/8080"},
		"443":                     {nil, ErrUnknown, `"443" is neither`}, // a number is a port
		"sho":                     {nil, ErrUnknown, `"sho" is neither`},
		"host/08080":              {nil, ErrUnknown, "SCOPE/PORT"},
		"":                        {nil, ErrUnknown, ""},
	} {
		found, err := Find(targets, func(n Name) Name { return n }, text)
		if d := cmp.Diff(want.found, found); d != "" {
			t.Errorf("%q: %s", text, d)
		}
		if !errors.Is(err, want.err) || err != nil && !strings.Contains(err.Error(), want.says) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
