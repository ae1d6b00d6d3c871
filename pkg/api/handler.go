package api

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"headgate/pkg/history"
	"headgate/pkg/metrics"
)

// newHandler returns what the address serves: reading only. Streams end when
// closing is closed. The mux answers any method but GET and HEAD with 405.
func newHandler(src Source, past *history.Store, closing <-chan struct{}, log *slog.Logger) http.Handler {
	mux, long := http.NewServeMux(), newTurns()
	mux.Handle("GET /metrics", long.handler(promhttp.HandlerFor(metrics.NewRegistry(src), promhttp.HandlerOpts{
		EnableOpenMetrics: true,
		ErrorHandling:     promhttp.ContinueOnError,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	})))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		text(w, http.StatusOK, "the process is alive\n")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if reasons := src.NotReady(); len(reasons) > 0 {
			text(w, http.StatusServiceUnavailable, "not ready:\n- "+strings.Join(reasons, "\n- ")+"\n")
			return
		}
		text(w, http.StatusOK, "ready\n")
	})
	mux.Handle("GET "+statusPath, long.handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, src.Status(), log)
	})))
	mux.HandleFunc("GET "+targetsPath+"{scope}/{port}/explain", func(w http.ResponseWriter, r *http.Request) {
		scope, port := r.PathValue("scope"), r.PathValue("port")
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			text(w, http.StatusBadRequest, fmt.Sprintf("%.40q is not a port\n", port))
			return
		}
		e, ok := src.Explain(scope, uint16(n))
		if !ok {
			text(w, http.StatusNotFound, fmt.Sprintf("port %d of the scope %.80q is not protected\n", n, scope))
			return
		}
		writeJSON(w, e, log)
	})
	mux.Handle("GET "+eventsPath, newStreams(src.Events(), closing))
	handlePage(mux, long, past, log)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
}

func writeJSON(w http.ResponseWriter, v any, log *slog.Logger) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		log.Error("an answer has no JSON form", "error", err)
		text(w, http.StatusInternalServerError, "the answer has no JSON form: "+err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // the client is gone
}

func text(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, body)
}
