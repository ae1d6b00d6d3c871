package e2e

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// What a limit of requests does not hold: who sends the next request before it
// has the response to the last is taken to send more of the same. Everybody is
// answered, and in the end nobody is in flight.

func TestRequestPipelining(t *testing.T) {
	const clients, batch = 40, 5
	srv, cli, to := hosts(t)
	s := serve(t, srv, contended("http"))
	ag := startHolding(t, srv, requests(10))
	got := askers{n: clients, each: 2, from: cli, to: to, ask: strings.Repeat(aGet, batch), read: func(in *bufio.Reader) error {
		for range batch {
			if err := response(in); err != nil {
				return err
			}
		}
		return nil
	}}.run(t, 20*time.Second)
	got.check(t)
	t.Logf("%d clients with %d requests at once: at most %d inside, limit 10", clients, batch, mostInside(t, s))
	empty(t, ag)
	st, err := s.Stats()
	if err != nil || st.Served != clients*2*batch {
		t.Errorf("the server: %+v, %v; want %d served", st, err, clients*2*batch)
	}
	t.Logf("%d served, %d counted", st.Served, target(ag).AdmittedTotal)
}

func TestRequestHTTP2(t *testing.T) {
	const clients, streams, each = 10, 10, 5
	srv, cli, to := hosts(t)
	s := serve(t, srv, contended("https"))
	ag := startHolding(t, srv, requests(10))
	var all sync.WaitGroup
	for range clients {
		transport := &http.Transport{DialContext: cli.Dial, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		defer transport.CloseIdleConnections()
		ask := func() error {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://%s/", to), nil)
			if err != nil {
				return err
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, resp.Body)
			if resp.ProtoMajor != 2 {
				err = errors.New(resp.Proto)
			}
			return errors.Join(err, resp.Body.Close())
		}
		if err := ask(); err != nil { // so that all streams find the connection
			t.Fatal(err)
		}
		for range streams {
			all.Go(func() {
				for range each {
					if err := ask(); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	t.Logf("%d connections with %d streams: at most %d inside, limit 10", clients, streams, mostInside(t, s))
	empty(t, ag)
	st, err := s.Stats()
	if err != nil || st.Served != clients*(streams*each+1) || target(ag).Connections != clients {
		t.Errorf("the server: %+v, %v; %d connections", st, err, target(ag).Connections)
	}
	t.Logf("%d served, %d counted", st.Served, target(ag).AdmittedTotal)
}
