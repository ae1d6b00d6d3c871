package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"headgate/internal/lab"
)

//go:embed app.py
var app []byte

const (
	threads      = 16
	queryTime    = 50 * time.Millisecond
	stalledTime  = 500 * time.Millisecond
	databasePort = 5432
)

// capacity is what the service carries, in requests a second, while queries
// take their ordinary time.
var capacity = threads / queryTime.Seconds()

// service is a gunicorn with a pool of threads in front of a PostgreSQL.
type service struct {
	host     *lab.Host
	database *lab.Postgres
	dir      string
}

func startService(ctx context.Context, h *lab.Host, dir string) (*service, error) {
	db, err := h.StartPostgres(ctx, databasePort, 2*threads)
	if err != nil {
		return nil, err
	}
	s := &service{host: h, database: db, dir: dir}
	// It listens a moment before it can be asked anything.
	for end := time.Now().Add(10 * time.Second); s.sql(ctx, "SELECT 1") != nil && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
	if err := os.WriteFile(filepath.Join(dir, "app.py"), app, 0o644); err != nil {
		return nil, errors.Join(err, db.Stop())
	}
	err = s.sql(ctx, "CREATE TABLE pace (seconds float8)", fmt.Sprintf("INSERT INTO pace VALUES (%f)", queryTime.Seconds()))
	if err != nil {
		return nil, errors.Join(err, db.Stop())
	}
	return s, nil
}

func (s *service) sql(ctx context.Context, statements ...string) error {
	args := []string{"-h", s.database.Socket, "-U", "postgres", "-q", "-v", "ON_ERROR_STOP=1"}
	for _, text := range statements {
		args = append(args, "-c", text)
	}
	out, err := exec.CommandContext(ctx, filepath.Join(s.database.Programs, "psql"), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("psql: %w: %s", err, out)
	}
	return nil
}

// queriesTake sets how long the database takes for what a request asks of it.
func (s *service) queriesTake(ctx context.Context, d time.Duration) error {
	return s.sql(ctx, fmt.Sprintf("UPDATE pace SET seconds = %f", d.Seconds()))
}

// startApp starts the application anew: what an earlier measurement left in
// its queues is none of the next one's.
func (s *service) startApp(ctx context.Context, port int) (stop func() error, err error) {
	cmd := s.host.Command(ctx, "gunicorn", "--chdir", s.dir, "--bind", fmt.Sprintf("0.0.0.0:%d", port),
		"--worker-class", "gthread", "--workers", "1", "--threads", fmt.Sprint(threads),
		"--keep-alive", "0", "--log-level", "critical", "app")
	cmd.Env = append(os.Environ(), fmt.Sprintf("DATABASE=host=%s user=postgres", s.database.Socket), "PYTHONDONTWRITEBYTECODE=1")
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("gunicorn (apt-get install gunicorn python3-psycopg2): %w", err)
	}
	stop = func() error {
		_ = cmd.Process.Signal(os.Interrupt) // quick: what waits is dropped
		_ = cmd.Wait()
		return nil
	}
	for end := time.Now().Add(10 * time.Second); !s.host.Listens(port); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return nil, errors.Join(errors.New("gunicorn does not listen"), stop())
		}
	}
	return stop, nil
}
