package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"

	"headgate/internal/lab/backend"
)

// inProcessVerb is the first argument of a process that is an HTTP server with
// an adaptive limiter inside.
const inProcessVerb = "in-process-limiter"

// inProcess runs a backend's work behind failsafe-go's adaptive limiter as it
// comes, without its queue: who is over the limit gets a 503.
func inProcess(text string) error {
	var spec backend.Spec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return err
	}
	server, err := backend.New(spec)
	if err != nil {
		return err
	}
	limiter := adaptivelimiter.NewWithDefaults[any]()
	handler := server.Handler()
	s := &http.Server{
		Addr:     spec.Listen[0],
		ErrorLog: log.New(io.Discard, "", 0), // clients go away
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			permit, ok := limiter.TryAcquirePermit()
			if !ok {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			defer permit.Record()
			handler.ServeHTTP(w, r)
		}),
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, func() { _ = s.Close() })
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
