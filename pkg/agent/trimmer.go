package agent

import (
	"log/slog"
	"sync"
	"time"

	"headgate/pkg/loader"
	"headgate/pkg/scope"
)

const (
	// trimRoom is how many connections may wait to be ended, beside those that
	// are being.
	trimRoom = 4096

	// trimWithin is how late a connection may still be ended that came over the
	// limit. What an agent that hung or died has left undone, its gates open by
	// then, is let be.
	trimWithin = time.Second
)

// capTrim is the capability to end connections.
const capTrim loader.Capability = "trim"

// trimmer ends the connections of a scope that there was no slot for: those of
// strangers in flood mode, and of clients that say nothing to a listener that waits
// for that. Else who is over is refused before it is one.
type trimmer struct {
	destroyer *scope.Destroyer
	log       *slog.Logger
	stop      chan struct{}
	done      chan struct{}

	mu   sync.Mutex
	work []loader.Wake
	some chan struct{} // there is work
}

// newTrimmer returns an error that wraps [scope.ErrCannotDestroy] where the
// kernel cannot end connections.
func newTrimmer(ns *scope.Netns, log *slog.Logger) (*trimmer, error) {
	d, err := ns.NewDestroyer()
	if err != nil {
		return nil, err
	}
	t := &trimmer{
		destroyer: d,
		log:       log,
		stop:      make(chan struct{}),
		done:      make(chan struct{}),
		some:      make(chan struct{}, 1),
	}
	go t.run()
	return t, nil
}

// add has a connection ended, before close. It does not block.
func (t *trimmer) add(w loader.Wake) {
	if t == nil {
		return
	}
	t.mu.Lock()
	full := len(t.work) == trimRoom
	if !full {
		t.work = append(t.work, w)
	}
	t.mu.Unlock()
	if full {
		t.log.Warn("too many connections over the limit at once; one stays", "client", w.Client.String())
	}
	select {
	case t.some <- struct{}{}:
	default:
	}
}

// take returns what there is to do.
func (t *trimmer) take() []loader.Wake {
	t.mu.Lock()
	defer t.mu.Unlock()
	work := t.work
	t.work = nil
	return work
}

func (t *trimmer) close() error {
	if t == nil {
		return nil
	}
	close(t.stop)
	<-t.done
	return t.destroyer.Close()
}

func (t *trimmer) run() {
	defer close(t.done)
	failed := false
	for {
		select {
		case <-t.stop:
			return
		case <-t.some:
		}
		for _, w := range t.take() {
			if now, err := monotonic(); err != nil || now-w.At > trimWithin {
				continue
			}
			err := t.destroyer.Destroy(scope.Connection{
				Client: w.Client, Server: w.Server, Device: w.Device, Cookie: w.Cookie,
			})
			if err != nil && !failed {
				t.log.Error("connections over the limit stay", "error", err)
			}
			failed = err != nil
		}
	}
}
