package api

import (
	"fmt"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Those who ask for much and read none of it keep nobody from the metrics and the
// status for longer than turnTime.
func TestWhoDoesNotReadLosesItsTurn(t *testing.T) {
	src := &many{}
	src.targets.Store(2000) // more than what the kernel takes of an answer
	addr := serve(t, src, "")
	narrow := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		controlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) })
		if controlErr != nil {
			return controlErr
		}
		return err
	}}
	for i := range 3 * maxTurns {
		c, err := narrow.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", []string{"/metrics", statusPath}[i%2]); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(200 * time.Millisecond)
	for _, path := range []string{"/metrics", statusPath, historyPath, "/healthz"} {
		begin := time.Now()
		resp, body := do(t, "GET", "http://"+addr+path)
		t.Logf("%s: %s, %d bytes, %v", path, resp.Status, len(body), time.Since(begin))
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %.100s", path, resp.Status, body)
		}
	}
}
