package main

import (
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

// newLines returns one that hands its lines on to w. What was lost because w did
// not take it is told by report, once w takes something again; report writes to w.
func newLines(w io.Writer, report func(lost int64)) *lines {
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

func (l *lines) run(w io.Writer, report func(lost int64)) {
	defer close(l.ended)
	write := func(line []byte) {
		_, _ = w.Write(line) // whom could we tell?
		if lost := l.lost.Swap(0); lost > 0 {
			report(lost)
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
func reportLost(h slog.Handler) func(int64) {
	log := slog.New(h)
	return func(lost int64) { log.Warn("nobody read the log for a while: some of it is missing", "lines", lost) }
}
