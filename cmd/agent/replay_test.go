package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const replayed = `{"algorithm":"AIMDLimit","params":{},"columns":["startTimeNanos","rttNanos","inflight","didDrop"],"steps":[[0,10,20,0]]}`

func runReplay(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	cmd := newReplayCmd()
	var out bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage = true
	cmd.SilenceErrors = true
	err := cmd.Execute()
	return out.String(), err
}

func TestReplayWritesTheOutputs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file.json")
	if err := os.WriteFile(file, []byte(replayed), 0o600); err != nil {
		t.Fatal(err)
	}
	fromFile, err := runReplay(t, "", file)
	if err != nil || !strings.Contains(fromFile, `"limit"`) || !strings.Contains(fromFile, "[0,10,20,0,21]") {
		t.Errorf("%v, %s", err, fromFile)
	}
	fromStdin, err := runReplay(t, replayed, "-")
	if err != nil || fromStdin != fromFile {
		t.Errorf("from stdin: %v, %s", err, fromStdin)
	}
}

func TestReplayNamesThePlaceOfAnError(t *testing.T) {
	for _, c := range []struct {
		stdin, want string
		args        []string
	}{
		{strings.Replace(replayed, "20,0]", "20]", 1), "stdin:1:108: steps[0]: 3 cells", []string{"-"}},
		{"", "/nowhere: no such file", []string{"/nowhere"}},
		{"", "accepts 1 arg", nil},
	} {
		out, err := runReplay(t, c.stdin, c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want %s", c.args, err, c.want)
		}
		if out != "" {
			t.Errorf("%v: wrote %s", c.args, out)
		}
	}
}
