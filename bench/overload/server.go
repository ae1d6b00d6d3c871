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
	turns []load.Turn // what a client says, on a connection of its own
	start func(context.Context, *stage) (stop func() error, err error)

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
		turns: []load.Turn{{Send: load.Get("/"), Begin: "HTTP/1.1 2", End: "ok\n"}},
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
		turns: []load.Turn{
			load.PostgresLogin(),
			load.PostgresQuery("SELECT count(*) FROM generate_series(1, 60000)"),
		},
		start: func(ctx context.Context, s *stage) (func() error, error) {
			db, err := s.srv.StartPostgres(ctx, port, 100)
			if err != nil {
				return nil, err
			}
			return db.Stop, nil
		},
	},
	{
		Name: "redis", Says: "a Lua script of some milliseconds, a new connection for each", restarts: true,
		turns: []load.Turn{load.RedisCommand(":1", "EVAL", busy, "0")},
		start: func(ctx context.Context, s *stage) (func() error, error) {
			db, err := s.srv.StartRedis(ctx, port)
			if err != nil {
				return nil, err
			}
			return db.Stop, nil
		},
	},
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
