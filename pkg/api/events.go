package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"headgate/pkg/events"
)

const (
	eventsPath = "/api/v1/events"

	// maxStreams is how many may follow the events at once. One more takes the place
	// of who has followed them for the longest.
	maxStreams = 32

	// aliveEvery is how often a stream with nothing to tell shows that it is
	// alive, and finds out whether its reader is.
	aliveEvery = 15 * time.Second

	// sendTimeout is how long a reader may take for what is sent to it.
	sendTimeout = 10 * time.Second

	// partTimeout is the same for a reader that gives up its place.
	partTimeout = time.Second
)

// streams are the readers of events.
type streams struct {
	bus     *events.Bus
	closing <-chan struct{}

	mu  sync.Mutex
	all []*stream // who has followed for the longest first
}

func newStreams(bus *events.Bus, closing <-chan struct{}) *streams {
	return &streams{bus: bus, closing: closing}
}

// ServeHTTP sends events as they happen, as server-sent events: first those
// that are kept, or of these the ones behind ?after=NUMBER or Last-Event-ID.
// With ?follow=0 it ends with the newest.
func (s *streams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	after, follow, err := streamQuery(r)
	if err != nil {
		text(w, http.StatusBadRequest, err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // of nginx, were one in between
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		select {
		case <-s.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	out := &stream{w: w, control: http.NewResponseController(w), ctx: ctx, cancel: cancel}
	s.begin(out)
	defer s.end(out)
	reader := s.bus.After(after)
	for out.send(reader) == nil && follow {
		if err := out.wait(reader); err != nil {
			return // the reader is gone, or we are, or too many others have come
		}
	}
}

// begin makes room for a stream.
func (s *streams) begin(one *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == maxStreams {
		longest := s.all[0]
		longest.cancel()
		// What cannot be interrupted has a deadline of its own.
		_ = longest.control.SetWriteDeadline(time.Now().Add(partTimeout))
		s.all = slices.Delete(s.all, 0, 1)
	}
	s.all = append(s.all, one)
}

// end forgets a stream that was not made to give up its place.
func (s *streams) end(one *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.all, one); i >= 0 {
		s.all = slices.Delete(s.all, i, i+1)
	}
}

func streamQuery(r *http.Request) (after uint64, follow bool, err error) {
	number := r.URL.Query().Get("after")
	if number == "" {
		number = r.Header.Get("Last-Event-ID")
	}
	if number != "" {
		if after, err = strconv.ParseUint(number, 10, 64); err != nil {
			return 0, false, fmt.Errorf("after: %.40q is not the number of an event", number)
		}
	}
	switch f := r.URL.Query().Get("follow"); f {
	case "", "1":
		return after, true, nil
	case "0":
		return after, false, nil
	default:
		return 0, false, fmt.Errorf("follow: %.40q is neither 0 nor 1", f)
	}
}

// stream is one answer that goes on.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	ctx     context.Context // ends with the reader, with us, and by cancel
	cancel  context.CancelFunc
}

// send sends all that there is.
func (s *stream) send(r *events.Reader) error {
	for e, ok := r.Poll(); ok; e, ok = r.Poll() {
		if err := s.event(e); err != nil {
			return err
		}
	}
	return s.flush("")
}

func (s *stream) event(e events.Event) error {
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("event %d has no JSON form: %w", e.Number, err)
	}
	if err := s.extend(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.w, "id: %d\nevent: %s\ndata: %s\n\n", e.Number, e.Type, data)
	return err
}

// extend gives the reader time for what is sent next.
func (s *stream) extend() error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	return s.control.SetWriteDeadline(time.Now().Add(sendTimeout))
}

func (s *stream) flush(text string) error {
	if err := s.extend(); err != nil {
		return err
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.control.Flush()
}

// wait sends the next event once there is one, and a sign of life until then.
func (s *stream) wait(r *events.Reader) error {
	for {
		alive, cancel := context.WithTimeout(s.ctx, aliveEvery)
		e, err := r.Next(alive)
		cancel()
		switch {
		case err == nil:
			return s.event(e)
		case s.ctx.Err() != nil || alive.Err() == nil:
			return err
		}
		if err := s.flush(": still here\n\n"); err != nil {
			return err
		}
	}
}
