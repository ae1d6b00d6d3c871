package api

import (
	"bufio"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"headgate/pkg/events"
	"headgate/pkg/history"
)

// FuzzRequest: whatever is asked of the address, the answer is one of a few kinds
// and of bounded length, and nothing panics.
func FuzzRequest(f *testing.F) {
	for _, path := range []string{
		"/", "/metrics", "/healthz", "/readyz", statusPath, eventsPath + "?follow=0&after=1", historyPath,
		targetsPath + "host/8080/explain", targetsPath + "netns:%2Frun%2Fblue%20net/8080/explain", "/../", "//", "/api/v1/targets//-1/explain",
	} {
		f.Add("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	f.Add("POST " + statusPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
	f.Add("GET " + eventsPath + " HTTP/1.1\r\nHost: x\r\nLast-Event-ID: 18446744073709551616\r\n\r\n")
	f.Add("OPTIONS * HTTP/1.0\r\n\r\n")
	agent := fakeAgent{events: events.NewBus(10, time.Now)}
	handler := newHandler(agent, history.New(), nil, slog.New(slog.DiscardHandler))
	f.Fuzz(func(t *testing.T, text string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		// Streams end with their reader.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r.WithContext(ctx))
		switch w.Code {
		case http.StatusOK, http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusPermanentRedirect, http.StatusBadRequest, http.StatusNotFound,
			http.StatusMethodNotAllowed, http.StatusServiceUnavailable:
		default:
			t.Errorf("%q: %d %s", text, w.Code, w.Body)
		}
		if w.Code == http.StatusOK && r.Method != http.MethodGet && r.Method != http.MethodHead {
			t.Errorf("%s was answered: %s", r.Method, w.Body)
		}
		if n := w.Body.Len(); n > 1<<18 {
			t.Errorf("%d bytes", n)
		}
		if w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%v", w.Header())
		}
	})
}
