package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPagesAreUpToDate(t *testing.T) {
	root := filepath.Join("..", "..")
	for path, page := range pages {
		want, err := page(root)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		got, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Error(err)
			continue
		}
		if d := cmp.Diff(want, string(got)); d != "" {
			t.Errorf("%s differs from what go run ./internal/docgen writes:\n%s", path, d)
		}
	}
}
