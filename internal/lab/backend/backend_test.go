package backend

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// start serves the spec on loopback and returns the address.
func start(t *testing.T, spec Spec) (*Server, string) {
	t.Helper()
	spec.Listen = []string{"127.0.0.1:0"}
	s, err := New(spec)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", spec.Listen[0])
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s, address
}

func get(t *testing.T, url string) (body string, took time.Duration) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	began := time.Now()
	resp, err := client.Get(url)
	if err != nil {
		t.Error(err)
		return "", 0
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return string(text), time.Since(began)
}

func TestWorkersBoundWhatIsWorkedOn(t *testing.T) {
	s, address := start(t, Spec{Protocol: "http", Workers: 4, Service: 20 * time.Millisecond})
	began := time.Now()
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() { get(t, "http://"+address+"/") })
	}
	group.Wait()
	// 20 requests through 4 workers take five rounds.
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Errorf("20 requests of 20 ms took %v with 4 workers, want at least 100 ms", took)
	}
	if got := s.Stats(); got.Served != 20 || got.Inside != 0 || got.MaxInside < 5 {
		t.Errorf("stats %+v: want 20 served, none inside, more inside at once than workers", got)
	}
}

func TestPathsAndQuery(t *testing.T) {
	for _, protocol := range []string{"http", "https"} {
		t.Run(protocol, func(t *testing.T) {
			_, address := start(t, Spec{Protocol: protocol, Workers: 2, Service: time.Millisecond})
			url := protocol + "://" + address
			if body, _ := get(t, url+"/big"); len(body) != BigSize {
				t.Errorf("/big has %d bytes, want %d", len(body), BigSize)
			}
			if _, took := get(t, url+"/?service=80ms"); took < 80*time.Millisecond {
				t.Errorf("service=80ms took %v", took)
			}
			if body, _ := get(t, url+"/?service=soon"); !strings.Contains(body, "soon") {
				t.Errorf("bad service: answer %q does not name it", body)
			}
		})
	}
}

func TestSlowdown(t *testing.T) {
	s, err := New(Spec{Protocol: "http", Listen: []string{":0"}, Workers: 10, Contention: 0.5, MaxSlowdown: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		inside int
		want   float64
	}{{1, 1}, {10, 1}, {20, 1.5}, {40, 2.5}, {50, 3}, {5000, 3}} {
		if got := s.slowdown(tt.inside); got != tt.want {
			t.Errorf("slowdown with %d inside = %v, want %v", tt.inside, got, tt.want)
		}
	}
}

func TestMaxConnsLeavesTheRestInTheAcceptQueue(t *testing.T) {
	s, address := start(t, Spec{Protocol: "line", MaxConns: 2})
	var conns []net.Conn
	for range 5 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	greeted := func(conn net.Conn, wait time.Duration) bool {
		_ = conn.SetReadDeadline(time.Now().Add(wait))
		_, err := io.ReadFull(conn, make([]byte, len(Banner)))
		return err == nil
	}
	for i, conn := range conns[:2] {
		if !greeted(conn, 2*time.Second) {
			t.Errorf("connection %d was not accepted", i)
		}
	}
	if greeted(conns[2], 50*time.Millisecond) {
		t.Error("a third connection was accepted")
	}
	if got := s.Stats().Conns; got != 2 {
		t.Errorf("%d connections accepted, want 2", got)
	}
	_ = conns[0].Close()
	if !greeted(conns[2], 2*time.Second) {
		t.Error("a place that became free was not used")
	}
}

func TestLineProtocol(t *testing.T) {
	_, address := start(t, Spec{Protocol: "line", Workers: 1, Service: 20 * time.Millisecond})
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); err != nil || line != Banner {
		t.Fatalf("first line %q, %v; want %q", line, err, Banner)
	}
	began := time.Now()
	if _, err := io.WriteString(conn, "one\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := in.ReadString('\n'); err != nil || line != "ok one\n" || time.Since(began) < 20*time.Millisecond {
		t.Errorf("answer %q, %v after %v; want ok one after 20ms", line, err, time.Since(began))
	}
	if _, err := io.WriteString(conn, "quit\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("after quit: %v, want EOF", err)
	}
}

func TestChildObeysAndEndsWithItsInput(t *testing.T) {
	in, commands := io.Pipe()
	replies, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Child(Spec{Protocol: "http", Listen: []string{"127.0.0.1:0"}}, in, out)
		_ = out.Close()
	}()
	lines := bufio.NewScanner(replies)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("first line %q", lines.Text())
	}
	_, _ = io.WriteString(commands, "stats\n")
	var stats Stats
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &stats) != nil {
		t.Errorf("stats: %q", lines.Text())
	}
	_, _ = io.WriteString(commands, "reset\n")
	if !lines.Scan() || lines.Text() != "ok" {
		t.Errorf("reset: %q", lines.Text())
	}
	_ = commands.Close()
	if err := <-done; err != nil {
		t.Errorf("Child: %v", err)
	}
}

func TestSpecValidate(t *testing.T) {
	good := Spec{Protocol: "http", Listen: []string{":0"}, Workers: 1, Contention: 1, MaxSlowdown: 1}
	if err := good.Validate(); err != nil {
		t.Errorf("good spec: %v", err)
	}
	for name, break_ := range map[string]func(*Spec){
		"protocol":       func(s *Spec) { s.Protocol = "ftp" },
		"no address":     func(s *Spec) { s.Listen = nil },
		"workers":        func(s *Spec) { s.Workers = -1 },
		"service":        func(s *Spec) { s.Service = -1 },
		"contention":     func(s *Spec) { s.Workers = 0 },
		"small slowdown": func(s *Spec) { s.MaxSlowdown = 0.5 },
	} {
		spec := good
		break_(&spec)
		if _, err := New(spec); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
