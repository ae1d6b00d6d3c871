package recipes

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/internal/lab/load"
)

// An application behind a proxy: 16 workers of 20 ms, and what more is inside
// makes it a little slower.
const appPort = 9000

func startApp(t *testing.T, h *lab.Host) (inside func() int) {
	t.Helper()
	s, err := h.StartServer(t.Context(), backend.Spec{
		Protocol: "http", Listen: []string{fmt.Sprintf("127.0.0.1:%d", appPort)},
		Workers: 16, Service: 20 * time.Millisecond, Contention: 0.05,
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() int {
		st, err := s.Stats()
		if err := errors.Join(err, s.ResetPeak()); err != nil {
			t.Fatal(err)
		}
		return st.MaxInside
	}
}

var recipes = []recipe{
	{
		example: "nginx.yaml", start: startNginx,
		ask: load.HTTP("/"), health: load.HTTP("/"), capacity: 800,
		bounds: bounds{p99: 10, goodput: 0.8, refusal: 0.5},
	},
	{
		example: "haproxy.yaml", start: startHAProxy,
		ask: load.HTTP("/"), health: load.HTTP("/"), pool: 400, capacity: 800,
		bounds: bounds{p99: 10, goodput: 0.8, refusal: 5},
	},
	{
		example: "postgresql.yaml", start: startPostgres, login: []load.Turn{load.PostgresLogin()},
		ask: changeHotRow, health: load.PostgresQuery("SELECT 1"), capacity: 160,
		bounds: bounds{p99: 8, goodput: 0.75, refusal: 5},
	},
	{
		example: "mariadb.yaml", start: startMariaDB, login: load.MySQLLogin(),
		ask:    load.MySQLUpdate("UPDATE shop.hot SET n = n + 1 + SLEEP(0.025) WHERE id = CONNECTION_ID() % 4"),
		health: load.MySQLPing(), capacity: 160,
		bounds: bounds{p99: 8, goodput: 0.75, refusal: 5},
	},
	{
		example: "redis.yaml", start: startRedis,
		ask:    load.RedisCommand("+OK", "DEBUG", "SLEEP", "0.005"),
		health: load.RedisCommand("+PONG", "PING"), pool: 200, capacity: 200,
		bounds: bounds{p99: 12, goodput: 0.75, refusal: 6},
	},
	{
		example: "java.yaml", start: startJava,
		ask: load.HTTP("/"), health: load.HTTP("/health"), pool: 400, capacity: 800,
		bounds: bounds{p99: 10, goodput: 0.75, refusal: 5},
	},
	{
		example: "gunicorn.yaml", start: startGunicorn,
		ask: load.HTTP("/"), health: load.HTTP("/health"), capacity: 200,
		bounds: bounds{p99: 4, goodput: 0.8, refusal: 0.5},
	},
}

func startNginx(t *testing.T, h *lab.Host, port int) (inside func() int) {
	t.Helper()
	inside = startApp(t, h)
	if _, err := h.StartNginx(t.Context(), lab.Nginx{Port: port, Upstream: fmt.Sprintf("127.0.0.1:%d", appPort)}); err != nil {
		t.Fatal(err)
	}
	return inside
}

func startHAProxy(t *testing.T, h *lab.Host, port int) (inside func() int) {
	t.Helper()
	inside = startApp(t, h)
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	text := fmt.Sprintf(`global
	maxconn 4000
	nbthread 1
defaults
	mode http
	timeout connect 1s
	timeout client 10s
	timeout server 10s
	timeout http-keep-alive 10s
frontend shop
	bind :::%d v4v6
	default_backend app
backend app
	server one 127.0.0.1:%d
`, port, appPort)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	startProgram(t, h, port, "haproxy", "-db", "-f", file)
	return inside
}

// changeHotRow is a transaction of its own, which has its row for 25 ms.
var changeHotRow = load.PostgresQuery("UPDATE hot SET n = n + 1 WHERE id = pg_backend_pid() % 4 RETURNING pg_sleep(0.025)")

// startPostgres starts a PostgreSQL with a table of four rows.
func startPostgres(t *testing.T, h *lab.Host, port int) (inside func() int) {
	t.Helper()
	pg, err := h.StartPostgres(t.Context(), port, 100)
	if err != nil {
		t.Fatal(err)
	}
	const statements = "CREATE TABLE hot (id int PRIMARY KEY, n int); INSERT INTO hot VALUES (0, 0), (1, 0), (2, 0), (3, 0)"
	for end := time.Now().Add(lab.Allow(10 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		psql := h.Command(t.Context(), filepath.Join(pg.Programs, "psql"), "-h", pg.Socket, "-p", fmt.Sprint(port), "-U", "postgres", "-qc", statements)
		out, err := psql.CombinedOutput()
		if err == nil {
			return nil
		}
		// It listens before it answers.
		if time.Now().After(end) {
			t.Fatalf("make a table: %v: %s", err, out)
		}
	}
}

// startMariaDB starts a MariaDB with a table of four rows.
func startMariaDB(t *testing.T, h *lab.Host, port int) (inside func() int) {
	t.Helper()
	if _, err := h.StartMariaDB(t.Context(), port, 100); err != nil {
		t.Fatal(err)
	}
	s := &site{recipe: recipe{login: load.MySQLLogin()}, cli: h, to: netip.AddrPortFrom(h.Addr4, uint16(port))}
	c, err := s.begin(t.Context(), netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	statements := []string{"CREATE DATABASE shop", "CREATE TABLE shop.hot (id int PRIMARY KEY, n int)"}
	for row := range 4 {
		statements = append(statements, fmt.Sprintf("INSERT INTO shop.hot VALUES (%d, 0)", row))
	}
	for _, text := range statements {
		if err := c.Say(load.MySQLStatement(text)); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return nil
}

func startRedis(t *testing.T, h *lab.Host, port int) (inside func() int) {
	t.Helper()
	if _, err := h.StartRedis(t.Context(), port); err != nil {
		t.Fatal(err)
	}
	return nil
}

func startJava(t *testing.T, h *lab.Host, port int) (inside func() int) {
	t.Helper()
	const control = 9001
	startProgram(t, h, port, "java", "-XX:TieredStopAtLevel=1", "testdata/Pool.java", fmt.Sprint(port), fmt.Sprint(control))
	return func() int {
		c, err := h.Dial(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", control))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var n int
		if _, err := c.Write(load.Get("/inside")); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := strings.Cut(string(answer), "\r\n\r\n")
		if _, err := fmt.Sscan(body, &n); err != nil {
			t.Fatalf("answer %q: %v", answer, err)
		}
		return n
	}
}

func startGunicorn(t *testing.T, h *lab.Host, port int) (inside func() int) {
	t.Helper()
	startProgram(t, h, port, "gunicorn", "--chdir", "testdata", "--bind", fmt.Sprintf(":%d", port),
		"--workers", "8", "--log-level", "critical", "app")
	return nil
}

func startProgram(t *testing.T, h *lab.Host, port int, name string, args ...string) {
	t.Helper()
	if _, err := h.StartProgram(t.Context(), port, name, args...); err != nil {
		t.Fatal(err)
	}
}
