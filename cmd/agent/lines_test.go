package main

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

// Nobody waits for who does not read, and what is missing then is told.
func TestLines(t *testing.T) {
	r, w := io.Pipe()
	l := newLines(w, func(lost int64) error {
		_, err := fmt.Fprintf(w, "lost %d\n", lost)
		return err
	})
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

// A line that cannot be written is missing, too, and told of once one can be.
func TestLinesFail(t *testing.T) {
	w := &failing{calls: []int{1, 2, 4}} // two lines, and the report of these
	l := newLines(w, reportLost(slog.NewTextHandler(w, nil)))
	for _, line := range []string{"a", "b", "c", "d"} {
		fmt.Fprintln(l, line)
	}
	l.Close()
	if got := w.String(); !strings.HasPrefix(got, "c\nd\n") || !strings.Contains(got, "lines=2") {
		t.Errorf("written: %q", got)
	}
}

// failing is what cannot be written to at some of the calls.
type failing struct {
	strings.Builder
	n     int
	calls []int
}

func (f *failing) Write(b []byte) (int, error) {
	if f.n++; slices.Contains(f.calls, f.n) {
		return 0, io.ErrShortWrite
	}
	return f.Builder.Write(b)
}

// The end does not wait for him either.
func TestLinesEnd(t *testing.T) {
	r, w := io.Pipe()
	defer r.Close()
	l := newLines(w, func(int64) error { return nil })
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
