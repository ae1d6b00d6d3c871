package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// Nobody waits for who does not read, and what is missing then is told.
func TestLines(t *testing.T) {
	r, w := io.Pipe()
	l := newLines(w, func(lost int64) { fmt.Fprintf(w, "lost %d\n", lost) })
	const more = 50
	begin := time.Now()
	for i := range maxLines + more {
		fmt.Fprintf(l, "line %d\n", i)
	}
	if took := time.Since(begin); took > linesTimeout {
		t.Errorf("waited %v for nobody", took)
	}
	got := make(chan string)
	go func() {
		all, _ := io.ReadAll(r)
		got <- string(all)
	}()
	l.Close()
	w.Close()
	all := strings.Split(strings.TrimSpace(<-got), "\n")
	var lost int
	for i, line := range all {
		if _, err := fmt.Sscanf(line, "lost %d", &lost); err == nil {
			all = append(all[:i], all[i+1:]...)
			break
		}
	}
	if len(all)+lost != maxLines+more || lost < more-1 || lost > more {
		t.Errorf("%d lines and %d lost, of %d", len(all), lost, maxLines+more)
	}
	for i, line := range all {
		if line != fmt.Sprintf("line %d", i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
}

// The end does not wait for him either.
func TestLinesEnd(t *testing.T) {
	r, w := io.Pipe()
	defer r.Close()
	l := newLines(w, func(int64) {})
	fmt.Fprintln(l, "a line")
	begin := time.Now()
	l.Close()
	if took := time.Since(begin); took > 2*linesTimeout {
		t.Errorf("waited %v for nobody", took)
	}
}

// An agent that cannot go on ends, although nobody reads why.
func TestRunEndsUnread(t *testing.T) {
	r, w := io.Pipe()
	defer r.Close()
	begin := time.Now()
	if code := run(t.Context(), []string{"run", "-p", "none"}, io.Discard, w); code == 0 {
		t.Error("a port that is none was taken")
	}
	if took := time.Since(begin); took > 3*linesTimeout {
		t.Errorf("waited %v for nobody", took)
	}
}
