package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// proxyPort is where HAProxy listens.
const proxyPort = 8079

// ctCount is what nftables has for the same purpose: it counts the entries of
// conntrack for the port.
func (b *bench) ctCount() subject {
	return subject{"nft ct count", func(ctx context.Context) (func() error, error) {
		return b.nft(ctx, fmt.Sprintf("tcp dport %d ct state new add @open { tcp dport ct count over 60000 } reject with tcp reset", port))
	}}
}

// nft has one rule in force for what comes in at the server.
func (b *bench) nft(ctx context.Context, rule string) (lower func() error, err error) {
	run := func(ctx context.Context, text string) error {
		cmd := b.srv.Command(ctx, "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	}
	err = run(ctx, fmt.Sprintf(`table inet bench {
	set open { type inet_service; flags dynamic; size 65536; }
	chain in {
		type filter hook input priority filter;
		%s
	}
}`, rule))
	return func() error { return run(context.Background(), "delete table inet bench") }, err
}

type proxy struct{ stop func() error }

// startHAProxy has HAProxy pass on what comes to proxyPort, over connections
// that are kept, with one thread as nginx has one worker.
func (b *bench) startHAProxy(ctx context.Context) (*proxy, error) {
	dir, err := os.MkdirTemp("", "haproxy-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "haproxy.cfg")
	text := fmt.Sprintf(`global
	maxconn 4000
	nbthread 1
defaults
	mode http
	timeout connect 1s
	timeout client 10s
	timeout server 10s
	http-reuse always
frontend in
	bind :%d
	default_backend web
backend web
	server web 127.0.0.1:%d maxconn 1000
`, proxyPort, port)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	cmd := b.srv.Command(ctx, "haproxy", "-q", "-db", "-f", file)
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("haproxy: %w", err), os.RemoveAll(dir))
	}
	p := &proxy{stop: func() error {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		return os.RemoveAll(dir)
	}}
	for end := time.Now().Add(10 * time.Second); !b.srv.Listens(proxyPort); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return nil, errors.Join(errors.New("haproxy does not listen"), p.stop())
		}
	}
	return p, nil
}
