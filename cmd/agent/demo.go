package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/spf13/cobra"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/demo"
)

func newDemoCmd() *cobra.Command {
	var o demo.Options
	var output, algorithm string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show an ordinary server under five times its load, without and with headgate",
		Long: `Demo makes network namespaces of its own, starts an ordinary HTTP server that
slows down when too many requests are inside, and drives five times the load
that it can carry at it, one connection a request: first with headgate only
observing, then enforcing. It takes less than a minute, needs root and nothing
else, and leaves nothing behind.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return usageError{fmt.Errorf("--output: %q is neither text nor json", output)}
			}
			if o.Server != "go" && o.Server != "nginx" {
				return usageError{fmt.Errorf("--server: %q is neither go nor nginx", o.Server)}
			}
			o.Start = func(_ context.Context, t demo.Target) (demo.Limiter, error) {
				return startDemoAgent(t, algorithm)
			}
			o.Live = cmd.ErrOrStderr()
			if output == "text" {
				o.Live = cmd.OutOrStdout()
			}
			result, err := demo.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			if output == "json" {
				return result.WriteJSON(cmd.OutOrStdout())
			}
			return result.WriteText(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&o.Server, "server", "go", "go, or nginx in front of it")
	cmd.Flags().StringVar(&algorithm, "algorithm", config.DefaultRule().Limit.Algorithm, "what computes the limit")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// demoAgent is an agent whose pins are on a BPF file system of their own.
type demoAgent struct {
	*agent.Agent
	unmount func() error
}

func startDemoAgent(t demo.Target, algorithm string) (demo.Limiter, error) {
	dir, unmount, err := lab.MountBPF()
	if err != nil {
		return nil, err
	}
	cfg := config.Default()
	cfg.State = filepath.Join(dir, "state")
	r := config.DefaultRule()
	r.Name = "demo"
	r.Ports = []uint16{t.Port}
	r.Scope = config.Scope{Netns: t.NetNS}
	r.Mode = config.ModeObserve
	r.Limit.Algorithm = algorithm
	cfg.Rules = []config.Rule{r}
	a, err := agent.Start(cfg, version, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, errors.Join(err, unmount())
	}
	return &demoAgent{Agent: a, unmount: unmount}, nil
}

func (d *demoAgent) SetMode(mode string) error {
	return d.Agent.SetMode(config.Mode(mode))
}

func (d *demoAgent) Close() error {
	return errors.Join(d.Agent.Remove(), d.unmount())
}
