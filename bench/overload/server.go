package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/internal/lab/load"
)

const (
	port         = 8080 // where each server listens
	proxyPort    = 8090 // where HAProxy does
	upstreamPort = 9000

	workers    = 16
	work       = 20 * time.Millisecond
	contention = 0.05
)

// subject is a kind of server that is overloaded.
type subject struct {
	Name string
	Says string

	http  bool
	login []load.Turn // begins a connection
	ask   load.Turn   // is a request
	start func(context.Context, *stage) (stop func() error, err error)

	// pool is how many connections the clients keep at most, for all requests; 0:
	// each request has one of its own.
	pool int

	// restarts: what is left of an overload without a limit would keep it busy
	// long after, and it is soon started anew.
	restarts bool

	// guarded starts it with a limiter inside; nil where there is none.
	guarded func(context.Context, *stage) (stop func() error, err error)
}

var subjects = []subject{
	{
		Name: "nginx", Says: fmt.Sprintf("in front of an HTTP server with %d workers of %v that slows down by %.0f %% for each further %d inside",
			workers, work, 100*contention, workers),
		http: true, restarts: true,
		ask: load.Turn{Send: load.Get("/"), Begin: "HTTP/1.1 2", End: "ok\n"},
		start: func(ctx context.Context, s *stage) (func() error, error) {
			upstream, err := s.srv.StartServer(ctx, upstreamSpec)
			if err != nil {
				return nil, err
			}
			return startNginx(ctx, s, upstream.Stop)
		},
		guarded: func(ctx context.Context, s *stage) (func() error, error) {
			stop, err := startInProcess(ctx, s.srv)
			if err != nil {
				return nil, err
			}
			return startNginx(ctx, s, stop)
		},
	},
	{
		Name: "postgres", Says: "a new connection for each query, which sorts nothing and counts 60,000 rows; max_connections 100",
		login: []load.Turn{load.PostgresLogin()}, ask: count(60_000), start: startPostgres,
	},
	{
		Name: "redis", Says: "a Lua script of some milliseconds, a new connection for each", restarts: true,
		ask: load.RedisCommand(":1", "EVAL", busy, "0"),
		start: func(ctx context.Context, s *stage) (func() error, error) {
			db, err := s.srv.StartRedis(ctx, port)
			if err != nil {
				return nil, err
			}
			return db.Stop, nil
		},
	},
	{
		Name: "postgres-pool", Says: fmt.Sprintf("on connections that are kept in a pool, 90 at most; a query counts 240,000 rows; max_connections %d", maxConnections),
		login: []load.Turn{load.PostgresLogin()}, ask: count(240_000), start: startPostgres, pool: 90,
	},
}

// count is a query that keeps a process busy, in proportion to rows.
func count(rows int) load.Turn {
	return load.PostgresQuery(fmt.Sprintf("SELECT count(*) FROM generate_series(1, %d)", rows))
}

const maxConnections = 100

func startPostgres(ctx context.Context, s *stage) (func() error, error) {
	db, err := s.srv.StartPostgres(ctx, port, maxConnections)
	if err != nil {
		return nil, err
	}
	return db.Stop, nil
}

var upstreamSpec = backend.Spec{
	Protocol: "http", Listen: []string{fmt.Sprintf("127.0.0.1:%d", upstreamPort)},
	Workers: workers, Service: work, Contention: contention,
}

func startNginx(ctx context.Context, s *stage, stopUpstream func() error) (func() error, error) {
	front, err := s.srv.StartNginx(ctx, lab.Nginx{
		Port: port, Upstream: fmt.Sprintf("127.0.0.1:%d", upstreamPort), Connections: 15_000,
	})
	if err != nil {
		return nil, errors.Join(err, stopUpstream())
	}
	return func() error { return errors.Join(front.Stop(), stopUpstream()) }, nil
}

// busy is a script that keeps the one thread of redis busy.
const busy = "local x = 0 for i = 1, 1600000 do x = x + i end return 1"

// startInProcess starts the upstream with a limiter of its own.
func startInProcess(ctx context.Context, h *lab.Host) (func() error, error) {
	spec, err := json.Marshal(upstreamSpec)
	if err != nil {
		return nil, err
	}
	cmd := h.Command(ctx, "/proc/self/exe", inProcessVerb, string(spec))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := func() error {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // how it ended is no matter
		return nil
	}
	for end := time.Now().Add(10 * time.Second); !h.Listens(upstreamPort); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return nil, errors.Join(errors.New("the server with a limiter inside does not listen"), stop())
		}
	}
	return stop, nil
}
