package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// fact is what tools/kernels/facts prints.
type fact struct {
	Feature string `json:"feature"`
	How     string `json:"how"`
}

// table is which kernel has what, and how.
type table struct {
	kernels  []string
	features []string                     // in the order in which they come
	how      map[string]map[string]string // by feature and kernel
}

// add adds what a guest has told.
func (t *table) add(k kernel, line string) error {
	var facts []fact
	if err := json.Unmarshal([]byte(line), &facts); err != nil {
		return fmt.Errorf("facts of %s: %w", k.name, err)
	}
	if t.how == nil {
		t.how = make(map[string]map[string]string)
	}
	name := fmt.Sprintf("%s (Debian %s)", k.series(), k.suite)
	t.kernels = append(t.kernels, name)
	for _, f := range facts {
		if t.how[f.Feature] == nil {
			t.how[f.Feature] = make(map[string]string)
			t.features = append(t.features, f.Feature)
		}
		t.how[f.Feature][name] = f.How
	}
	return nil
}

func (t *table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n", strings.Join(t.kernels, " | "))
	fmt.Fprintf(&b, "|---|%s\n", strings.Repeat("---|", len(t.kernels)))
	for _, f := range t.features {
		fmt.Fprintf(&b, "| %s |", f)
		for _, k := range t.kernels {
			fmt.Fprintf(&b, " %s |", t.how[f][k])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Between these a document has the table.
const (
	tableBegin = "<!-- begin of what tools/kernels writes -->\n"
	tableEnd   = "<!-- end of it -->\n"
)

// write puts the table in its place in a document.
func (t *table) write(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, begun := strings.Cut(string(text), tableBegin)
	_, after, ended := strings.Cut(rest, tableEnd)
	if !begun || !ended {
		return fmt.Errorf("%s has no place for a table", path)
	}
	return os.WriteFile(path, []byte(before+tableBegin+t.String()+tableEnd+after), 0o644)
}
