package api

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/pkg/events"
)

// come connects to a server and asks for a path, if it is one, until the test ends.
func come(t *testing.T, s *httptest.Server, path string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if path == "" {
		return c
	}
	if s.TLS != nil {
		c = tls.Client(c, &tls.Config{RootCAs: s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "example.com"})
	}
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	return c
}

// closed says whether the other side has closed a connection, once it has been read.
func closed(t *testing.T, c net.Conn) bool {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, c)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

const health = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

// Whatever others do with all the connections that there may be, who asks for
// something is answered.
func TestNobodyIsKeptOut(t *testing.T) {
	for name, text := range map[string]string{
		"silent":              "",
		"idle":                health,
		"half a request":      strings.TrimSuffix(health, "\r\n"),
		"a body that is long": "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx",
		"following events":    "GET " + eventsPath + " HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			addr := serve(t, fakeAgent{events: events.NewBus(10, time.Now)}, "")
			var others []net.Conn
			for range places() {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if _, err := io.WriteString(c, text); err != nil {
					t.Fatal(err)
				}
				others = append(others, c)
			}
			for range 10 {
				for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
					begin := time.Now()
					if resp, body := do(t, "GET", "http://"+addr+path); resp.StatusCode != http.StatusOK {
						t.Errorf("%s: %s %s", path, resp.Status, body)
					}
					if took := time.Since(begin); took > 2*time.Second {
						t.Errorf("%s took %v", path, took)
					}
				}
			}
			if text == "" && (!closed(t, others[0]) || closed(t, others[places()-1])) {
				t.Error("it is not those that came first who had to go")
			}
		})
	}
}

// crowded is a server with so many places, which answers /much without end and /slow
// when it is told to.
func crowded(t *testing.T, places int, secure bool) (_ *httptest.Server, slow chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	crowd := newCrowd(l.(*net.TCPListener), places)
	slow = make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "ok") })
	mux.HandleFunc("/much", func(w http.ResponseWriter, _ *http.Request) {
		for err := error(nil); err == nil; _, err = w.Write(make([]byte, 64<<10)) {
		}
	})
	mux.HandleFunc("/slow", func(http.ResponseWriter, *http.Request) { <-slow })
	s := &httptest.Server{Listener: crowd, Config: &http.Server{
		Handler: mux, ConnState: crowd.note, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
	}}
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s, slow
}

// Those go first that ask nothing, and of these who has done so for the longest;
// then those that do not take what they are sent; and last who is at work, whose
// place is free when that is done.
func TestWhoHasToGo(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %v", secure), func(t *testing.T) {
			s, slow := crowded(t, 3, secure)
			arrive := func(path string) net.Conn {
				t.Helper()
				c := come(t, s, path)
				time.Sleep(30 * time.Millisecond) // until the server has seen it
				return c
			}
			idle, much, silent := arrive("/healthz"), arrive("/much"), arrive("")
			arrive("/slow")
			if !closed(t, idle) {
				t.Error("the one that was idle for the longest is there still")
			}
			arrive("/slow")
			if !closed(t, silent) {
				t.Error("the one that never asked is there still")
			}
			if line, err := bufio.NewReader(arrive("/healthz")).ReadString('\n'); err != nil || line != "HTTP/1.1 200 OK\r\n" {
				t.Errorf("%q, %v", line, err)
			}
			if !closed(t, much) {
				t.Error("the one that takes nothing is there still")
			}
			arrive("/slow")
			last := make(chan error, 1)
			go func() {
				resp, err := s.Client().Get(s.URL + "/healthz")
				if err == nil {
					err = resp.Body.Close()
				}
				last <- err
			}()
			select {
			case <-last:
				t.Error("there were more handlers than places")
			case <-time.After(100 * time.Millisecond):
			}
			close(slow)
			if err := <-last; err != nil {
				t.Error(err)
			}
		})
	}
}

// Who asks leaves the agent the files that it needs.
func TestPlacesAreFiles(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}()
	for files, want := range map[uint64]int{4: 1, 128: 16, 1024: 128} {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
		if got := places(); got != want {
			t.Errorf("%d places of %d files, want %d", got, files, want)
		}
	}
}
