package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is skipped is there: a test that gets another name would run.
func TestSkipped(t *testing.T) {
	for _, s := range suites {
		files, err := filepath.Glob(filepath.Join("../..", s.dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for _, file := range files {
			part, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text.Write(part)
		}
		for _, name := range s.skip {
			test, part, _ := strings.Cut(name, "/")
			if !strings.Contains(text.String(), "\nfunc "+test+"(t *testing.T)") {
				t.Errorf("%s has no %s", s.dir, test)
			}
			if part = strings.ReplaceAll(part, "_", " "); !strings.Contains(text.String(), part) {
				t.Errorf("%s has no %q", s.dir, part)
			}
		}
	}
}
