package main

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// maxLines is how many lines may wait for who reads the log.
	maxLines = 1000

	// linesTimeout is how long the end waits for those that are left.
	linesTimeout = time.Second
)

// lines is a writer of lines that never waits: who has stopped reading the log of
// an agent must not stop the agent. It is safe for concurrent use.
type lines struct {
	waiting chan []byte
	lost    atomic.Int64
	end     chan struct{}
	ended   chan struct{}
}

// newLines returns one that hands its lines on to w. How many were lost because w did
// not take them is told by report, once w takes something again; report writes to w.
func newLines(w io.Writer, report func(lost int64) error) *lines {
	l := &lines{waiting: make(chan []byte, maxLines), end: make(chan struct{}), ended: make(chan struct{})}
	go l.run(w, report)
	return l
}

// Write takes a line, or counts it as lost. It never fails.
func (l *lines) Write(line []byte) (int, error) {
	select {
	case l.waiting <- append([]byte(nil), line...):
	default:
		l.lost.Add(1)
	}
	return len(line), nil
}

func (l *lines) run(w io.Writer, report func(lost int64) error) {
	defer close(l.ended)
	write := func(line []byte) {
		if _, err := w.Write(line); err != nil {
			l.lost.Add(1)
			return
		}
		if lost := l.lost.Swap(0); lost > 0 && report(lost) != nil {
			l.lost.Add(lost)
		}
	}
	for {
		select {
		case line := <-l.waiting:
			write(line)
			continue
		case <-l.end:
		}
		for {
			select {
			case line := <-l.waiting:
				write(line)
				continue
			default:
			}
			return
		}
	}
}

// Close waits a second at most until all lines are handed on. It is called once.
func (l *lines) Close() {
	close(l.end)
	select {
	case <-l.ended:
	case <-time.After(linesTimeout):
	}
}

// reportLost says in a log that lines of it are missing.
func reportLost(h slog.Handler) func(int64) error {
	return func(lost int64) error {
		r := slog.NewRecord(time.Now(), slog.LevelWarn, "nobody read the log for a while: some of it is missing", 0)
		r.AddAttrs(slog.Int64("lines", lost))
		if !h.Enabled(context.Background(), r.Level) {
			return nil
		}
		return h.Handle(context.Background(), r) // a Logger does not say whether it was written
	}
}
