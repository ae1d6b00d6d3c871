package e2e

import (
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
)

// manager is a service manager: it gathers what it is told.
type manager struct {
	path string
	conn *net.UnixConn
}

func newManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{path: filepath.Join(t.TempDir(), "notify")}
	var err error
	if m.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.conn.Close() })
	return m
}

// hears returns the first line of what comes next, "" when nothing comes in time.
func (m *manager) hears(t *testing.T, within time.Duration) string {
	t.Helper()
	_ = m.conn.SetReadDeadline(time.Now().Add(within))
	b := make([]byte, 4096)
	n, err := m.conn.Read(b)
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(b[:n]), "\n")
	return first
}

// must waits for one message, and lets beats of the watchdog go by.
func (m *manager) must(t *testing.T, want string) {
	t.Helper()
	for {
		got := m.hears(t, patience)
		if got == want {
			return
		}
		if got != "WATCHDOG=1" {
			t.Fatalf("the service manager hears %q, want %q", got, want)
		}
	}
}

// The service manager hears when the agent protects, that it is alive as long
// as its windows run, and when it ends.
func TestServiceManager(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli")
	srv := l.Host("srv")
	keep(t, srv, "tcp", ":8080")
	program := buildAgent(t)
	m := newManager(t)
	t.Setenv("NOTIFY_SOCKET", m.path)
	t.Setenv("WATCHDOG_USEC", "300000") // a beat each 100 ms
	p := launch(t, program, srv, closed)
	m.must(t, "READY=1")
	p.await(t)
	for range 3 {
		if got := m.hears(t, patience); got != "WATCHDOG=1" {
			t.Fatalf("the service manager hears %q, want a beat", got)
		}
	}
	p.signal(t, syscall.SIGHUP)
	m.must(t, "RELOADING=1")
	m.must(t, "READY=1")
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	m.must(t, "STOPPING=1")
}
