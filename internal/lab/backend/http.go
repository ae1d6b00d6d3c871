package backend

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"time"
)

// BigSize is the length of the response to /big.
const BigSize = 2 << 20

// Handler answers every path after one turn of work; the body of the request
// is read first. /big has a response of BigSize bytes. The query parameter
// service replaces the service time: /?service=150ms.
func (s *Server) Handler() http.Handler {
	big := bytes.Repeat([]byte("0123456789abcde\n"), BigSize/16)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		service := time.Duration(-1)
		if q := r.URL.Query().Get("service"); q != "" {
			d, err := time.ParseDuration(q)
			if err != nil || d < 0 {
				http.Error(w, fmt.Sprintf("service=%s: not a duration like 20ms", q), http.StatusBadRequest)
				return
			}
			service = d
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.work(service)
		if r.URL.Path == "/big" {
			_, _ = w.Write(big) // an error means that the client has gone
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
}

func (s *Server) serveHTTP(ctx context.Context, listeners []net.Listener) error {
	srv := &http.Server{
		Handler: s.Handler(),
		// Clients that go away in the middle are expected here, not news.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	if s.spec.Protocol == "https" {
		cert, err := selfSigned()
		if err != nil {
			return fmt.Errorf("making a certificate: %w", err)
		}
		srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}}
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	defer srv.Close()

	return serveAll(ctx, listeners, func(ln net.Listener) error {
		if s.spec.Protocol == "https" {
			return srv.ServeTLS(ln, "", "")
		}
		return srv.Serve(ln)
	})
}

// serveAll runs serve on each listener and returns when the first one ends:
// nil when ctx ended it.
func serveAll(ctx context.Context, listeners []net.Listener, serve func(net.Listener) error) error {
	ended := make(chan error, len(listeners))
	for _, ln := range listeners {
		go func() { ended <- serve(ln) }()
	}
	err := <-ended
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// selfSigned makes a certificate that nobody is to trust.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(24 * time.Hour),
		DNSNames:     []string{"localhost"},
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
