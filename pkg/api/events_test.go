package api

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"headgate/pkg/events"
)

func TestEvents(t *testing.T) {
	bus := events.NewBus(10, time.Now)
	addr := serve(t, fakeAgent{events: bus}, "")
	bus.Publish(events.Event{Type: events.Reload, Message: "first"})
	bus.Publish(events.Event{Type: events.Reload, Message: "second"})

	resp, body := do(t, "GET", "http://"+addr+"/api/v1/events?follow=0")
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" ||
		!strings.HasPrefix(body, "id: 1\nevent: reload\ndata: {\"number\":1,") || strings.Count(body, "\n\n") != 2 {
		t.Errorf("%s %v %s", resp.Status, resp.Header, body)
	}
	for _, header := range [][]string{nil, {"Last-Event-ID", "1"}} {
		query := "follow=0"
		if header == nil {
			query += "&after=1"
		}
		if _, body := do(t, "GET", "http://"+addr+"/api/v1/events?"+query, header...); !strings.HasPrefix(body, "id: 2\n") {
			t.Errorf("%q %v: %s", query, header, body)
		}
	}
	for _, query := range []string{"after=x", "after=-1", "follow=yes"} {
		if resp, body := do(t, "GET", "http://"+addr+"/api/v1/events?"+query); resp.StatusCode != 400 || !strings.Contains(body, query[:5]) {
			t.Errorf("%s: %s %s", query, resp.Status, body)
		}
	}
}

func TestFollowEvents(t *testing.T) {
	bus := events.NewBus(10, time.Now)
	addr := serve(t, fakeAgent{events: bus}, "")
	bus.Publish(events.Event{Type: events.Reload, Message: "before"})
	var seen []string
	stop := errors.New("enough")
	err := FollowEvents(t.Context(), addr, true, func(e events.Event) error {
		if seen = append(seen, e.Message); len(seen) == 3 {
			return stop
		}
		bus.Publish(events.Event{Type: events.Reload, Message: "after " + e.Message})
		return nil
	})
	if !errors.Is(err, stop) || strings.Join(seen, ", ") != "before, after before, after after before" {
		t.Errorf("%q, %v", seen, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = FollowEvents(ctx, addr, true, func(events.Event) error { cancel(); return nil })
	if err != nil {
		t.Errorf("interrupted: %v", err)
	}
	n := 0
	if err := FollowEvents(t.Context(), addr, false, func(events.Event) error { n++; return nil }); err != nil || n != 3 {
		t.Errorf("%d events, %v", n, err)
	}
}

// A server that ends does not wait for those who follow.
func TestStreamsEndWithTheServer(t *testing.T) {
	bus := events.NewBus(10, time.Now)
	ended := make(chan error, 1)
	t.Run("server", func(t *testing.T) {
		addr := serve(t, fakeAgent{events: bus}, "")
		bus.Publish(events.Event{Type: events.Reload})
		begun := make(chan struct{})
		go func() {
			ended <- FollowEvents(context.Background(), addr, true, func(events.Event) error { close(begun); return nil })
		}()
		<-begun
	})
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "the agent has ended") {
			t.Error(err)
		}
	case <-time.After(closeTimeout / 2):
		t.Error("the stream goes on")
	}
}

// So many streams there are and no more, and nobody is kept from the events by those
// who follow them.
func TestStreamsAreBounded(t *testing.T) {
	bus := events.NewBus(10, time.Now)
	addr := serve(t, fakeAgent{events: bus}, "")
	bus.Publish(events.Event{Type: events.Reload})
	var streams []*bufio.Reader
	for range maxStreams + 2 {
		resp, err := http.Get("http://" + addr + eventsPath)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		r := bufio.NewReader(resp.Body)
		if line, err := r.ReadString('\n'); err != nil || line != "id: 1\n" {
			t.Fatalf("%s: %q, %v", resp.Status, line, err)
		}
		streams = append(streams, r)
	}
	bus.Publish(events.Event{Type: events.Reload})
	for i, r := range streams {
		var line string
		var err error
		for err == nil && line != "id: 2\n" {
			line, err = r.ReadString('\n')
		}
		if over := i < 2; over && !errors.Is(err, io.EOF) || !over && err != nil {
			t.Errorf("stream %d of %d: %q, %v", i, len(streams), line, err)
		}
	}
}
