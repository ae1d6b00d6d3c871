package api

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"headgate/pkg/controller"
	"headgate/pkg/events"
	"headgate/pkg/history"
)

const historyPath = "/api/v1/history"

// page is the live page: it asks for the status and the history each second
// and draws them, with no library and nothing from anywhere else.
//
//go:embed page
var page embed.FS

// pagePolicy is what a browser may do for the page: load its own files and ask
// this server. The page is no frame of another and sends no form.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// handlePage adds the page and the history that it draws.
func handlePage(mux *http.ServeMux, long *turns, past *history.Store, log *slog.Logger) {
	for path, file := range map[string]string{
		"/{$}":      "index.html",
		"/page.css": "page.css",
		"/page.js":  "page.js",
		"/chart.js": "chart.js",
		"/units.js": "units.js",
		"/icon.svg": "icon.svg",
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Security-Policy", pagePolicy)
			http.ServeFileFS(w, r, page, "page/"+file)
		})
	}
	mux.Handle("GET "+historyPath, long.handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		points, wanted, err := historyQuery(r.URL.Query())
		if err != nil {
			text(w, http.StatusBadRequest, err.Error()+"\n")
			return
		}
		body, err := json.Marshal(past.Newest(points, wanted))
		if err != nil {
			log.Error("history has no JSON form", "error", err)
			text(w, http.StatusInternalServerError, "the history has no JSON form: "+err.Error()+"\n")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(body, '\n'))
	})))
}

// historyQuery reads which history is asked for: points=N for the newest ones,
// target=SCOPE/PORT, as often as there are targets, or none for all of them.
func historyQuery(q url.Values) (points int, wanted func(string, uint16) bool, err error) {
	type target struct {
		scope string
		port  uint16
	}
	for name := range q {
		if name != "points" && name != "target" {
			return 0, nil, fmt.Errorf("unknown parameter %q: there are points and target", name)
		}
	}
	points = history.Points
	if text := q.Get("points"); text != "" {
		if points, err = strconv.Atoi(text); err != nil || points < 1 || points > history.Points {
			return 0, nil, fmt.Errorf("points=%q: not a number from 1 to %d", text, history.Points)
		}
	}
	targets := make(map[target]bool)
	for _, name := range q["target"] {
		// A scope may contain slashes, a port does not.
		at := strings.LastIndexByte(name, '/')
		port, err := strconv.ParseUint(name[at+1:], 10, 16)
		if at < 1 || err != nil {
			return 0, nil, fmt.Errorf("target=%q: not SCOPE/PORT, such as host/8080", name)
		}
		targets[target{name[:at], uint16(port)}] = true
	}
	return points, func(scope string, port uint16) bool {
		return len(targets) == 0 || targets[target{scope, port}]
	}, nil
}

// remember records the status of src, and how limits change, until ctx ends.
func remember(ctx context.Context, src Source, past *history.Store) {
	past.Record(time.Now(), src.Status().Targets)
	var changes sync.WaitGroup
	defer changes.Wait()
	if bus := src.Events(); bus != nil {
		follower := bus.Follow()
		changes.Go(func() { rememberChanges(ctx, follower, past) })
	}
	tick := time.NewTicker(history.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			past.Record(time.Now(), src.Status().Targets)
		}
	}
}

func rememberChanges(ctx context.Context, r *events.Reader, past *history.Store) {
	for {
		e, err := r.Next(ctx)
		if err != nil {
			return // the context's, or there will be no more
		}
		if e.Type == events.LimitChange && e.From != nil && e.To != nil {
			past.Changed(e.Scope, e.Port, history.Change{
				Time: e.Time, From: *e.From, To: *e.To,
				Reason: e.Reason, Words: controller.Reason(e.Reason).Words(),
			})
		}
	}
}
