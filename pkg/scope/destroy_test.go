package scope_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/scope"
)

func TestDestroy(t *testing.T) {
	h := lab.ForTest(t, "srv").Host("srv")
	d, err := openNetns(t, h.NetNS).NewDestroyer()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, c := range []struct{ name, listen, dial string }{
		{"IPv4", "127.0.0.1:8080", "127.0.0.1:8080"},
		{"IPv6", "[::1]:8080", "[::1]:8080"},
		{"v4-mapped", "[::]:8080", "127.0.0.1:8080"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ln, err := h.Listen("tcp", c.listen)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			client, err := h.Dial(t.Context(), "tcp", c.dial)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			server, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			at := scope.Connection{
				Client: netip.MustParseAddrPort(client.LocalAddr().String()),
				Server: netip.MustParseAddrPort(c.dial),
				Cookie: cookieOf(t, server),
			}

			another := at
			another.Cookie++
			if err := d.Destroy(another); err != nil {
				t.Errorf("a connection that is gone: %v", err)
			}
			if err := client.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("the connection after another was ended: %v", err)
			}

			if err := d.Destroy(at); err != nil {
				t.Fatal(err)
			}
			if err := client.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("its client reads: %v, want a reset", err)
			}
			if _, err := server.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("its server reads: %v, want an error", err)
			}
			if err := d.Destroy(at); err != nil {
				t.Errorf("once more: %v", err)
			}
		})
	}
}

func cookieOf(t *testing.T, c net.Conn) (cookie uint64) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	ctlErr := raw.Control(func(fd uintptr) {
		cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
	})
	if err := errors.Join(ctlErr, err); err != nil {
		t.Fatal(err)
	}
	return cookie
}
