package load

import (
	"bufio"
	"io"
	"net"
	"testing"
	"time"
)

// lines serves connections with one answer to each line, each in two parts.
func lines(t *testing.T, answers ...string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for _, a := range answers {
					if _, err := in.ReadString('\n'); err != nil {
						return
					}
					_, _ = io.WriteString(conn, a[:len(a)/2])
					time.Sleep(2 * time.Millisecond)
					_, _ = io.WriteString(conn, a[len(a)/2:])
				}
				_, _ = io.Copy(io.Discard, in)
			}()
		}
	}()
	return ln.Addr().String()
}

func TestTurns(t *testing.T) {
	turns := []Turn{
		{Send: []byte("hello\n"), Begin: "+welcome", End: "!\r\n"},
		{Send: []byte("ask\n"), Begin: "=", End: "\r\n"},
	}
	for name, c := range map[string]struct {
		answers []string
		want    Counts
	}{
		"both answered":        {[]string{"+welcome home!\r\n", "=42\r\n"}, Counts{Arrived: 20, Answered: 20}},
		"the second refused":   {[]string{"+welcome home!\r\n", "-busy\r\n"}, Counts{Arrived: 20, Failed: 20}},
		"not welcome":          {[]string{"-busy!\r\n"}, Counts{Arrived: 20, Failed: 20}},
		"the first never ends": {[]string{"+welcome home"}, Counts{Arrived: 20, TimedOut: 20}},
		"a beginning cut off":  {[]string{"+wel!\r\n"}, Counts{Arrived: 20, Failed: 20}},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := run(t, lines(t, c.answers...), 20, func(cfg *Config) {
				cfg.Request, cfg.Turns, cfg.Timeout = nil, turns, 300*time.Millisecond
			})
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// A server that closes in the midst of an answer has not answered.
func TestTurnsCutShort(t *testing.T) {
	turns := []Turn{{Send: []byte("ask\r\n\r\n"), Begin: "=", End: "\r\n"}}
	for answer, want := range map[string]Counts{
		"":                {Arrived: 20, Reset: 20},
		"=4":              {Arrived: 20, Failed: 20},
		"HTTP/1.1 200 OK": {Arrived: 20, Failed: 20},
	} {
		address := raw(t, func(conn net.Conn) { _, _ = io.WriteString(conn, answer) })
		got, _ := run(t, address, 20, func(cfg *Config) { cfg.Request, cfg.Turns = nil, turns })
		if got != want {
			t.Errorf("%q: got %+v, want %+v", answer, got, want)
		}
	}
}
