package main

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// Where windows do not run there is no beat, however well the process does.
func TestWatchdogBeatsOnlyWhileAlive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "30000")
	ctx, stop := context.WithCancel(t.Context())
	var alive atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		systemd{slog.New(slog.DiscardHandler)}.watchdog(ctx, alive.Load)
	}()
	heard := func(within time.Duration) string {
		_ = conn.SetReadDeadline(time.Now().Add(within))
		b := make([]byte, 64)
		n, _ := conn.Read(b)
		return string(b[:n])
	}
	if got := heard(200 * time.Millisecond); got != "" {
		t.Errorf("with no window running: %q", got)
	}
	alive.Store(true)
	if got := heard(5 * time.Second); got != "WATCHDOG=1" {
		t.Errorf("with windows running: %q", got)
	}
	stop()
	<-ended
	t.Setenv("WATCHDOG_USEC", "")
	systemd{slog.New(slog.DiscardHandler)}.watchdog(t.Context(), alive.Load) // returns: nobody wants to know
}
