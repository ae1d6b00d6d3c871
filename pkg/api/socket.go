package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/net/netutil"

	"headgate/pkg/config"
	"headgate/pkg/control"
)

// ErrSocketInUse means that somebody answers on the socket.
var ErrSocketInUse = errors.New("somebody answers there already, perhaps another agent")

const (
	limitPath  = "/api/v1/limit"
	modePath   = "/api/v1/mode"
	exemptPath = "/api/v1/exempt"
	reloadPath = "/api/v1/reload"

	maxControlConnections = 16
	maxControlBody        = 16 << 10

	socketMode    = 0o660
	socketDirMode = 0o755
)

// Control is the agent as its socket sees it. The errors are those of package
// control where they apply. Its methods are called from several goroutines at
// once.
type Control interface {
	SetLimit(control.Limit) (control.Answer, error)
	SetModes(control.Mode) (control.Answer, error)
	SetExempt(control.Exempt) (control.Answer, error)

	// Reload has the configuration read again and returns why that is not in
	// force.
	Reload(control.Reload) error
}

// Socket is the unix socket of an agent. Whoever may write to it may change what
// the agent does.
type Socket struct {
	path     string
	file     fs.FileInfo
	listener net.Listener
	http     *http.Server
}

// ListenSocket takes the socket of a configuration; nil when it is to have none.
// The directory is made where it is missing. A socket that is there is removed
// if nobody answers on it: its agent was killed. It appears with its final
// rights.
func ListenSocket(cfg *config.Config) (_ *Socket, err error) {
	if cfg.Socket == config.SocketNone {
		return nil, nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("socket %s: %w; the key socket, --socket or HEADGATE_SOCKET names another one, or none", cfg.Socket, err)
		}
	}()
	group, err := groupID(cfg.SocketGroup)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(cfg.Socket)
	if err := os.MkdirAll(dir, socketDirMode); err != nil {
		return nil, err
	}
	if err := removeStale(cfg.Socket); err != nil {
		return nil, err
	}
	// Made where nobody else can come to it, and moved when it is as it should be.
	private, err := os.MkdirTemp(dir, ".headgate-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(private)
	path := filepath.Join(private, "s")
	addr := &net.UnixAddr{Name: path, Net: "unix"}
	l, err := net.ListenUnix("unix", addr)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	l.SetUnlinkOnClose(false)
	if err := os.Chown(path, -1, group); err != nil {
		return nil, err
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, err
	}
	file, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(path, cfg.Socket); err != nil {
		return nil, err
	}
	return &Socket{
		path:     cfg.Socket,
		file:     file,
		listener: netutil.LimitListener(l, maxControlConnections),
		http: &http.Server{
			MaxHeaderBytes:    maxHeaderBytes,
			ReadHeaderTimeout: readHeaderTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       readTimeout,
		},
	}, nil
}

// groupID returns the number of a group, -1 for none.
func groupID(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, fmt.Errorf("socket_group: %w", err)
	}
	return strconv.Atoi(g.Gid)
}

// removeStale removes a socket that nobody answers on.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("something that is no socket is there")
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		return errors.Join(ErrSocketInUse, c.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// Serve carries out requests until Close, and then returns nil.
func (s *Socket) Serve(ctl Control, log *slog.Logger) error {
	s.http.Handler = newControlHandler(ctl, log)
	s.http.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve socket %s: %w", s.path, err)
	}
	return nil
}

// Close takes the socket away, where there is one. Requests under way have two
// seconds to end.
func (s *Socket) Close() error {
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	// Not that of somebody who has put his in its place.
	if now, err := os.Lstat(s.path); err == nil && os.SameFile(now, s.file) {
		errs = append(errs, os.Remove(s.path))
	}
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	errs = append(errs, err)
	if err := s.listener.Close(); !errors.Is(err, net.ErrClosed) {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close socket %s: %w", s.path, err)
	}
	return nil
}

// failure is the body of an answer to a request that was not carried out.
type failure struct {
	Error string `json:"error"`
}

func newControlHandler(ctl Control, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	handle(mux, "POST "+limitPath, log, ctl.SetLimit)
	handle(mux, "POST "+modePath, log, ctl.SetModes)
	handle(mux, "POST "+exemptPath, log, ctl.SetExempt)
	handle(mux, "POST "+reloadPath, log, func(r control.Reload) (struct{}, error) {
		return struct{}{}, ctl.Reload(r)
	})
	return mux
}

// handle answers a request with what do returns. Its body is JSON without a key
// that is not known.
func handle[Request, Answer any](mux *http.ServeMux, pattern string, log *slog.Logger, do func(Request) (Answer, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		var request Request
		d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxControlBody))
		d.DisallowUnknownFields()
		err := d.Decode(&request)
		if err == nil {
			if _, more := d.Token(); !errors.Is(more, io.EOF) {
				err = errors.New("more than one value")
			}
		}
		if err != nil {
			fail(w, http.StatusBadRequest, fmt.Errorf("the body is not a request: %w", err), log)
			return
		}
		if tooLate(r) {
			fail(w, http.StatusRequestTimeout, errors.New("who asked has given up before the agent came to it"), log)
			return
		}
		answer, err := do(request)
		if err != nil {
			fail(w, codeOf(err), err, log)
			return
		}
		writeJSON(w, answer, log)
	})
}

// tooLate says whether a request was to be begun before now, see beginHeader.
func tooLate(r *http.Request) bool {
	before, err := strconv.ParseInt(r.Header.Get(beginHeader), 10, 64)
	return err == nil && time.Now().UnixMilli() > before
}

func codeOf(err error) int {
	switch {
	case errors.Is(err, control.ErrUnknown):
		return http.StatusNotFound
	case errors.Is(err, control.ErrAmbiguous):
		return http.StatusConflict
	case errors.Is(err, control.ErrForce):
		return http.StatusForbidden
	case errors.Is(err, control.ErrInvalid):
		return http.StatusBadRequest
	}
	return http.StatusUnprocessableEntity
}

func fail(w http.ResponseWriter, code int, err error, log *slog.Logger) {
	body, jsonErr := json.Marshal(failure{err.Error()})
	if jsonErr != nil {
		log.Error("an error has no JSON form", "error", jsonErr)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // the client is gone
}
