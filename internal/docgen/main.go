// Docgen writes the references in docs/ from the code that they describe.
// Run it in the root of the repository: go run ./internal/docgen
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

//go:generate go run . -root ../..

// pages are the generated files, by their path.
var pages = map[string]func(root string) (string, error){
	"docs/config.md":            configPage,
	"docs/headgate.schema.json": schemaPage,
	"docs/metrics.md":           func(string) (string, error) { return metricsPage(), nil },
}

func main() {
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	if err := write(*root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(root string) error {
	for path, page := range pages {
		text, err := page(root)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
