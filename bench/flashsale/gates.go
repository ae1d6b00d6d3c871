package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/status"
)

const (
	port       = 8000 // where clients go
	behindPort = 8001 // where the application listens behind a proxy
)

// gate is one way to stand in front of the service.
type gate struct {
	Name string
	Says string // what it is set to

	proxied bool
	raise   func(context.Context, *stage) (*raised, error)
}

// raised is a gate in place.
type raised struct {
	lower func() error
	look  func() (status.Target, bool) // nil where there is nothing to see
}

// stage is where the gates stand.
type stage struct {
	srv    *lab.Host
	dir    string       // for files
	state  string       // on a bpffs
	health netip.Prefix // where health checks come from
}

// gates are compared in this order. The static ones are set as people set them
// who know the service on a good day: a pool of 16 with 50 ms each, a database
// with room for 200.
var gates = []gate{
	{
		Name: "no limiter", Says: "nothing",
		raise: func(context.Context, *stage) (*raised, error) {
			return &raised{lower: func() error { return nil }}, nil
		},
	},
	{
		Name: "static rate", Says: "nft: limit rate over 5000/second",
		raise: nft(`table inet sale {
	chain in {
		type filter hook input priority filter;
		tcp dport 8000 ct state new limit rate over 5000/second reject with tcp reset
	}
}`),
	},
	{
		Name: "static connections", Says: "nft: ct count over 200",
		raise: nft(`table inet sale {
	set open { type inet_service; flags dynamic; size 65536; }
	chain in {
		type filter hook input priority filter;
		tcp dport 8000 ct state new add @open { tcp dport ct count over 200 } reject with tcp reset
	}
}`),
	},
	{
		Name: "HAProxy", Says: fmt.Sprintf("maxconn %d to the server, queue 1 s", threads),
		proxied: true, raise: haproxy,
	},
	{
		Name: "headgate, connections", Says: "all defaults",
		raise: headgate(func(*config.Rule) {}),
	},
	{
		Name: "headgate, requests", Says: "unit: request, else all defaults",
		raise: headgate(func(r *config.Rule) { r.Unit = config.UnitRequest }),
	},
}

func nft(rules string) func(context.Context, *stage) (*raised, error) {
	return func(ctx context.Context, s *stage) (*raised, error) {
		cmd := s.srv.Command(ctx, "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("nft: %w: %s", err, out)
		}
		return &raised{lower: func() error {
			out, err := s.srv.Command(context.Background(), "nft", "delete", "table", "inet", "sale").CombinedOutput()
			if err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			return nil
		}}, nil
	}
}

func haproxy(ctx context.Context, s *stage) (*raised, error) {
	file := filepath.Join(s.dir, "haproxy.cfg")
	text := fmt.Sprintf(`global
	maxconn 5000
	nbthread 1
defaults
	mode http
	timeout connect 1s
	timeout client 10s
	timeout server 10s
	timeout queue 1s
	option http-server-close
frontend in
	bind :%d
	default_backend app
backend app
	server app 127.0.0.1:%d maxconn %d
`, port, behindPort, threads)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	cmd := s.srv.Command(ctx, "haproxy", "-q", "-db", "-f", file)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("haproxy: %w", err)
	}
	lower := func() error {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		return nil
	}
	for end := time.Now().Add(10 * time.Second); !s.srv.Listens(port); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return nil, errors.Join(errors.New("haproxy does not listen"), lower())
		}
	}
	return &raised{lower: lower}, nil
}

func headgate(set func(*config.Rule)) func(context.Context, *stage) (*raised, error) {
	return func(_ context.Context, s *stage) (*raised, error) {
		cfg := config.Default()
		cfg.State = s.state
		r := config.DefaultRule()
		r.Name = "shop"
		r.Ports = []uint16{port}
		r.Scope = config.Scope{Netns: s.srv.NetNS}
		r.Mode = config.ModeEnforce
		r.Exempt = []netip.Prefix{s.health}
		set(&r)
		cfg.Rules = []config.Rule{r}
		a, err := agent.Start(cfg, "bench", slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		return &raised{lower: a.Remove, look: func() (status.Target, bool) {
			targets := a.Status().Targets
			if len(targets) == 0 {
				return status.Target{}, false
			}
			return targets[0], true
		}}, nil
	}
}
