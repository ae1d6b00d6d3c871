package demo_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/demo"
)

// limiter is an agent as the demo wants it.
type limiter struct{ *agent.Agent }

func (l limiter) SetMode(mode string) error {
	return l.Agent.SetMode(config.Mode(mode))
}

func (l limiter) Close() error { return l.Remove() }

// The promise of the demo: at five times what the server can carry goodput
// collapses, and with headgate on at least nine tenths of what it can carry are
// answered in time, and fast.
func TestHeadgateSavesTheServer(t *testing.T) {
	if os.Geteuid() != 0 && os.Getenv(lab.RequireRoot) != "1" {
		t.Skip("needs root")
	}
	if testing.Short() {
		t.Skip("takes most of a minute")
	}
	for _, tt := range []struct{ server, algorithm string }{
		{"go", config.DefaultRule().Limit.Algorithm},
		{"nginx", "fixed"}, // at its initial 20: of the server's 16 threads none is idle
	} {
		t.Run(tt.server+" "+tt.algorithm, func(t *testing.T) { saves(t, tt.server, tt.algorithm) })
	}
}

func saves(t *testing.T, server, algorithm string) {
	bpffs, unmount, err := lab.MountBPF()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount(); err != nil {
			t.Error(err)
		}
	})
	start := func(_ context.Context, target demo.Target) (demo.Limiter, error) {
		cfg := config.Default()
		cfg.State = filepath.Join(bpffs, "state")
		cfg.Mode = config.ModeObserve
		rule := config.DefaultRule()
		rule.Name, rule.Ports = "demo", []uint16{target.Port}
		rule.Scope = config.Scope{Netns: target.NetNS}
		rule.Mode = cfg.Mode
		rule.Limit.Algorithm = algorithm
		cfg.Rules = []config.Rule{rule}
		a, err := agent.Start(cfg, "test", slog.New(slog.NewTextHandler(t.Output(), nil)))
		if err != nil {
			return nil, err
		}
		return limiter{a}, nil
	}
	r, err := demo.Run(t.Context(), demo.Options{
		Start: start, Server: server, Live: t.Output(),
		WarmUp: 2 * time.Second, Phase: 6 * time.Second, Settle: 3 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteText(t.Output()); err != nil {
		t.Error(err)
	}
	if got := r.Observe.Goodput(); got > 0.2*r.CapacityPerSecond {
		t.Errorf("off: goodput %.0f/s, want a collapse", got)
	}
	if got := r.Enforce.Goodput(); got < 0.9*r.CapacityPerSecond {
		t.Errorf("on: goodput %.0f/s, want at least 0.9 * %.0f/s", got, r.CapacityPerSecond)
	}
	if r.Enforce.P99Seconds > r.WithinSeconds {
		t.Errorf("on: p99 %v s, want at most %v s", r.Enforce.P99Seconds, r.WithinSeconds)
	}
	if refused := r.Enforce.Refused; refused < r.Enforce.Arrived/2 {
		t.Errorf("on: %d of %d refused, want most of them", refused, r.Enforce.Arrived)
	}
	if r.Observe.Refused > 0 {
		t.Errorf("off: %d refused", r.Observe.Refused)
	}
}
