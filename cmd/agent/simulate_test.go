package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// runSimulate runs the command and returns what it wrote.
func runSimulate(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := newSimulateCmd()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

func simulated(t *testing.T, args ...string) map[string]any {
	t.Helper()
	out, _, err := runSimulate(t, append(args, "-o", "json")...)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal([]byte(out), &m); err != nil {
		t.Fatalf("%v in %.200s", err, out)
	}
	return m
}

func TestSimulateUnderOverload(t *testing.T) {
	fixed := simulated(t, "--capacity", "2", "--duration", "30s", "--algorithm", "fixed", "--initial", "2000")
	guarded := simulated(t, "--capacity", "2", "--duration", "30s", "--best")
	if f, g := fixed["goodput_per_second"].(float64), guarded["goodput_per_second"].(float64); g < 700 || f > 100 {
		t.Errorf("goodput %.0f/s with guarded, %.0f/s with a limit far too high; capacity is 800/s", g, f)
	}
	ratio := guarded["best_constant"].(map[string]any)["goodput_ratio"].(float64)
	if ratio < 0.9 || ratio > 1.01 {
		t.Errorf("%.3f of the best constant limit", ratio)
	}
	if n := len(guarded["series"].([]any)); n != 300 {
		t.Errorf("%d points for 30 s", n)
	}
}

func TestSimulateScenarioFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.yaml")
	text := "name: five\nduration: 20s\nserver: {workers: 4}\nload: {capacity: 5}\nlimit: {algorithm: fixed, initial: 8}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a := simulated(t, "--scenario", file)
	b := simulated(t, "--scenario", file, "--initial", "4")
	if a["name"] != "five" || a["algorithm"] != "fixed" {
		t.Errorf("name %v, algorithm %v", a["name"], a["algorithm"])
	}
	limit := func(m map[string]any) float64 { return m["series"].([]any)[0].(map[string]any)["limit"].(float64) }
	if limit(a) != 8 || limit(b) != 4 {
		t.Errorf("limits %v and %v, want 8 from the file and 4 from the flag", limit(a), limit(b))
	}
}

func TestSimulateErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.yaml")
	if err := os.WriteFile(file, []byte("load: {rate: 1}\nserver: {workrs: 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		file + ":2:10: ":     {"--scenario", file},
		"server.workers: -1": {"--workers", "-1"},
		"--output":           {"-o", "png"},
		"limit.min":          {"--min", "-4"},
		"limit.algorithm":    {"--algorithm", "best"},
		"no such file":       {"--scenario", file + "x"},
	} {
		out, _, err := runSimulate(t, args...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
		if out != "" {
			t.Errorf("%v: wrote %q", args, out)
		}
	}
}

func TestSimulateSVGIsWellFormed(t *testing.T) {
	out, _, err := runSimulate(t, "--duration", "20s", "-o", "svg")
	if err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(strings.NewReader(out))
	paths := 0
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "path" {
			paths++
		}
	}
	if paths < 14 || !strings.Contains(out, "prefers-color-scheme: dark") || strings.Contains(out, "NaN") {
		t.Errorf("%d paths in %.300s", paths, out)
	}
}

func TestSimulateText(t *testing.T) {
	out, _, err := runSimulate(t, "--duration", "20s", "--reject", "drop")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"goodput", "p99 from the first attempt", "in flight"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestSimulateSaysHowFarItIs(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(0, 0)
	p := progress(&out, func() time.Time { return now }, time.Hour)
	for i := range 50 {
		p(time.Duration(i) * time.Minute)
		now = now.Add(100 * time.Millisecond)
	}
	if got, want := out.String(), "simulated 20m0s of 1h0m0s\nsimulated 40m0s of 1h0m0s\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
