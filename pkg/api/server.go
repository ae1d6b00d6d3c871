package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/sys/unix"

	"headgate/pkg/config"
	"headgate/pkg/history"
)

// Whoever can reach the address may talk to it, so that all a client can take
// is bounded. A scrape takes milliseconds.
const (
	maxConnections    = 256
	shareOfFiles      = 8  // one in so many that this process may have open is a connection at most
	maxStreamsOfHTTP2 = 16 // at once, on a connection
	maxHeaderBytes    = 16 << 10
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = 2 * time.Minute
	closeTimeout      = 2 * time.Second // for requests under way when it closes
)

// Server is the HTTP server of an agent.
type Server struct {
	listener  *crowd
	webConfig string
	http      *http.Server
	closing   chan struct{} // closed when streams have to end
}

// CheckWeb says whether the web configuration of a configuration can be used.
func CheckWeb(cfg *config.Config) error {
	if err := web.Validate(cfg.WebConfig); err != nil {
		return fmt.Errorf("web_config %s: %w", cfg.WebConfig, err)
	}
	return nil
}

// Listen takes the address of a configuration. The web configuration is read
// as well: an agent whose TLS is wrong must not start.
func Listen(cfg *config.Config) (*Server, error) {
	if err := CheckWeb(cfg); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, listenError(cfg.Listen, err)
	}
	listener := newCrowd(l.(*net.TCPListener), places())
	return &Server{
		listener:  listener,
		webConfig: cfg.WebConfig,
		closing:   make(chan struct{}),
		http: &http.Server{
			MaxHeaderBytes:    maxHeaderBytes,
			ReadHeaderTimeout: readHeaderTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			ConnState:         listener.note,
			HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreamsOfHTTP2},
		},
	}, nil
}

// places is how many connections there may be: the agent itself needs files, too, to
// look after what is in the kernel.
func places() int {
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil {
		return maxConnections // a seccomp profile forbids to ask
	}
	return int(max(min(files.Cur/shareOfFiles, maxConnections), 1))
}

// listenError says what can be done about an address that cannot be had.
func listenError(address string, err error) error {
	hint := "the key listen, --listen or HEADGATE_LISTEN names another address"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("listen on %s: another program, perhaps another agent, listens there already; %s: %w",
			address, hint, syscall.EADDRINUSE)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("listen on %s: no interface of this host has the address; %s: %w",
			address, hint, syscall.EADDRNOTAVAIL)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("listen on %s: not permitted to this user; %s: %w", address, hint, syscall.EACCES)
	}
	return fmt.Errorf("listen on %s: %w; %s", address, err, hint)
}

// Addr returns the address that is listened on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve answers requests about src until Close, and then returns nil. While it
// does, it remembers what the live page shows of the past.
func (s *Server) Serve(src Source, log *slog.Logger) error {
	past := history.New()
	ctx, stop := context.WithCancel(context.Background())
	var recorder sync.WaitGroup
	recorder.Go(func() { remember(ctx, src, past) })
	defer recorder.Wait()
	defer stop()

	s.http.Handler = newHandler(src, past, s.closing, log)
	s.http.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug) // what clients do wrong
	err := web.Serve(s.listener, s.http, &web.FlagConfig{WebConfigFile: &s.webConfig}, log)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve HTTP on %s: %w", s.Addr(), err)
}

// Close gives up the address; it is called once. Requests under way have two seconds to end.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	close(s.closing)
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	// Before Serve, http does not know the listener; after, it is closed.
	if closeErr := s.listener.Close(); !errors.Is(closeErr, net.ErrClosed) {
		err = errors.Join(err, closeErr)
	}
	if err != nil {
		return fmt.Errorf("close %s: %w", s.Addr(), err)
	}
	return nil
}
