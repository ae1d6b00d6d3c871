package lab

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"headgate/internal/lab/backend"
)

func fetch(t *testing.T, from *Host, addr netip.Addr, port uint16, path string) string {
	t.Helper()
	transport := &http.Transport{DialContext: from.Dial}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("http://" + netip.AddrPortFrom(addr, port).String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestNginx(t *testing.T) {
	l := ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	if _, err := srv.StartNginx(t.Context(), Nginx{Port: 8080}); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []netip.Addr{srv.Addr4, srv.Addr6} {
		if got := fetch(t, cli, addr, 8080, "/"); got != "ok\n" {
			t.Errorf("%v: body %q", addr, got)
		}
	}
	if got := fetch(t, cli, srv.Addr4, 8080, "/big"); len(got) != backend.BigSize {
		t.Errorf("/big: %d bytes", len(got))
	}

	server, err := srv.StartServer(t.Context(), backend.Spec{Protocol: "http", Listen: []string{"127.0.0.1:9000"}})
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := srv.StartNginx(t.Context(), Nginx{Port: 8081, Upstream: "127.0.0.1:9000"})
	if err != nil {
		t.Fatal(err)
	}
	if got := fetch(t, cli, srv.Addr6, 8081, "/"); got != "ok\n" {
		t.Errorf("through the proxy: body %q", got)
	}
	if stats, err := server.Stats(); err != nil || stats.Served != 1 {
		t.Errorf("the upstream served %d (%v), want 1", stats.Served, err)
	}

	_, err = srv.StartNginx(t.Context(), Nginx{Port: 8080})
	if err == nil || !strings.Contains(err.Error(), "8080 is in use") {
		t.Errorf("a port in use: error %v does not say so", err)
	}
	_, err = srv.StartNginx(t.Context(), Nginx{Port: 8082, Upstream: "not a host"})
	if err == nil || !strings.Contains(err.Error(), "nginx.conf") {
		t.Errorf("a bad configuration: error %v does not hold nginx's own words", err)
	}
	if err := proxy.Stop(); err != nil {
		t.Error(err)
	}
	if srv.Listens(8081) {
		t.Error("listens after Stop")
	}
}

func TestRedis(t *testing.T) {
	l := ForTest(t, "srv", "cli")
	srv := l.Host("srv")
	if _, err := srv.StartRedis(t.Context(), 6379); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Host("cli").Dial(t.Context(), "tcp", netip.AddrPortFrom(srv.Addr4, 6379).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	in := bufio.NewReader(conn)
	for command, want := range map[string]string{"PING": "+PONG\r\n", "DEBUG SLEEP 0.01": "+OK\r\n"} {
		if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
			t.Fatal(err)
		}
		if got, err := in.ReadString('\n'); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", command, got, err, want)
		}
	}
}

func TestListed(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000
   1: 0100007F:0050 0100007F:E0C4 01 00000000:00000000 00:00000000 00000000
`
	for port, want := range map[int]bool{8080: true, 80: false, 8081: false} {
		if got := listed(table, port); got != want {
			t.Errorf("listed(%d) = %v", port, got)
		}
	}
}

func TestPostgres(t *testing.T) {
	l := ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	pg, err := srv.StartPostgres(t.Context(), 5432, 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{srv.Addr4.String(), srv.Addr6.String()} {
		out, err := cli.Command(t.Context(), pg.Programs+"/psql", "-h", host, "-U", "postgres", "-Atc", "select 41 + 1").CombinedOutput()
		if err != nil || string(out) != "42\n" {
			t.Errorf("%s: %v, %q", host, err, out)
		}
	}
	out, err := srv.Command(t.Context(), pg.Programs+"/psql", "-h", pg.Socket, "-U", "postgres", "-Atc", "show max_connections").CombinedOutput()
	if err != nil || string(out) != "10\n" {
		t.Errorf("by its socket: %v, %q", err, out)
	}
	if err := pg.Stop(); err != nil {
		t.Error(err)
	}
}
