package sim

import (
	"strings"
	"testing"
	"time"
)

func TestReadFile(t *testing.T) {
	f := File{Scenario: Scenario{Seed: 7}}
	err := f.ReadFile("x.yaml", strings.NewReader(`
name: spike
duration: 90s
server:
  workers: 8
  classes: [{share: 0.9, times: 1}, {share: 0.1, times: 10}]
load:
  capacity: 0.5
  profile:
    - {at: 0s, times: 1}
    - {at: 30s, times: 4, ramp: true}
limit:
  algorithm: gradient2
  max: 300
  queue_size: 4
  long_window: 600s
`))
	if err != nil {
		t.Fatal(err)
	}
	if f.Name != "spike" || f.Duration != 90*time.Second || f.Server.Classes[1].Times != 10 || f.Seed != 7 ||
		!f.Load.Profile[1].Ramp || f.Limit.Algorithm != "gradient2" || *f.Limit.Max != 300 {
		t.Errorf("%+v", f)
	}
}

func TestReadFileSaysWhere(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"load:\n  rate: 5\nservr: {}\n", "x.yaml:3:1: "},
		{"load:\n  rate: fast\n", "x.yaml:2:9: "},
		{"load: {rate: 5}\nserver:\n  workers: 8\n  workers: 9\n", "x.yaml:4:3: "},
		{"load: {rate: 5}\nserver:\n  workers: -1\n", "x.yaml:3:12: server.workers: -1 is not"},
		{"load: {rate: 5}\nserver:\n  changes:\n    - {at: 1s, speed: -1}\n", "x.yaml:4:23: server.changes[0].speed:"},
		{"load: {rate: 5}\nlimit: {algorithm: best}\n", `x.yaml:2:20: limit.algorithm: `},
		{"load: {rate: 5}\nlimit: {burst: -1}\n", "x.yaml:2:16: limit.burst: "},
		{"load: {rate: 5}\nlimit: {smoothing: 0.5}\n", "x.yaml:2:20: limit.smoothing: "},
		{"", "x.yaml: load: "},
		{"a: [", "x.yaml:1:"},
	} {
		f := File{Scenario: Scenario{Seed: 7}}
		err := f.ReadFile("x.yaml", strings.NewReader(c.text))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
		if f.Seed != 7 || f.Load.Rate != 0 {
			t.Errorf("%q: changed all the same: %+v", c.text, f)
		}
	}
}
