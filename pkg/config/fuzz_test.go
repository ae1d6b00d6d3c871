package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"headgate/pkg/pace"
)

// FuzzParse: whatever a file holds, Parse returns a configuration that can be
// used, or errors that name their place; it never panics.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, c := range errorCases {
		if len(c.text) < 10_000 {
			f.Add([]byte(c.text))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, Input{File: "f", SSHPorts: []uint16{22}})
		if err == nil {
			seen := map[target]bool{}
			for _, x := range c.Targets() {
				key := target{x.Rule.Scope, x.Port}
				if x.Port == 0 || x.Rule.Name == "" || x.Rule.Mode == "" || seen[key] {
					t.Errorf("accepted %+v", x.Rule)
				}
				seen[key] = true
				if x.Rule.Unit == UnitRequest && x.Rule.Reject == RejectDrop || x.Rule.Waits() && x.Rule.Hold.MaxWaiting < 1 {
					t.Errorf("accepted %+v", x.Rule)
				}
				if p := x.Rule.Pace; p.Rate.PerSecond > 0 && p.WarmUp.Period > 0 {
					ramp := pace.Ramp{Rate: p.Rate.PerSecond, Period: p.WarmUp.Period, ColdFactor: p.WarmUp.ColdFactor}
					if _, err := pace.NewWarmPacer(ramp, p.MaxWait, 1); err != nil {
						t.Errorf("accepted %+v: %v", p, err)
					}
				}
				if _, err := x.NewAlgorithm(); err != nil {
					t.Error(err)
				}
			}
			if len(seen) == 0 {
				t.Error("accepted without a target")
			}
			return
		}
		var all Errors
		if !errors.As(err, &all) || len(all) == 0 {
			t.Fatalf("not of type Errors: %v", err)
		}
		lines := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") + 1
		for _, e := range all {
			if e.File != "f" || e.Msg == "" || e.Line < 0 || e.Line > lines || e.Line > 0 && e.Column < 1 {
				t.Errorf("names no place: %#v", e)
			}
			if strings.ContainsFunc(e.Excerpt, func(c rune) bool { return c < ' ' && c != '\n' }) {
				t.Errorf("control characters in %q", e.Excerpt)
			}
		}
	})
}
