package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"headgate/pkg/agent"
	"headgate/pkg/api"
	"headgate/pkg/config"
)

func newRunCmd() *cobra.Command {
	var s settings
	var l logging
	var keep bool
	cmd := &cobra.Command{
		Use:   "run {-c FILE | -p PORT ...}",
		Short: "Protect ports until told to stop",
		Long: `Run attaches headgate to the kernel and recomputes the limits of its targets
until it gets SIGTERM or SIGINT. It then detaches everything, or with --keep
leaves it in place for the next agent: counting goes on, and every gate opens
when the lease runs out. The same happens when the agent dies or hangs.

Flags take precedence over the environment (HEADGATE_LISTEN and so on), which
takes precedence over the file.`,
		Example: `  headgate run -p 8080
  headgate run -c /etc/headgate.yaml --mode observe`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := l.logger(cmd)
			if err != nil {
				return err
			}
			cfg, err := s.load()
			if err != nil {
				return err
			}
			return protect(cmd.Context(), cfg, keep, log)
		},
	}
	s.register(cmd)
	l.register(cmd)
	cmd.Flags().BoolVar(&keep, "keep", false, "when stopped, leave programs and counts in the kernel for the next agent")
	return cmd
}

// protect runs an agent until ctx ends. The address is taken first: an agent
// that nobody can ask must not begin to refuse.
func protect(ctx context.Context, cfg *config.Config, keep bool, log *slog.Logger) (err error) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)

	server, err := api.Listen(cfg)
	if err != nil {
		return err
	}
	a, err := agent.Start(cfg, version, log)
	if err != nil {
		return errors.Join(err, server.Close())
	}
	defer func() {
		if keep {
			err = errors.Join(err, a.Stop())
		} else {
			err = errors.Join(err, a.Remove())
		}
	}()
	for _, t := range cfg.Targets() {
		log.Info("protecting", "rule", t.Rule.Name, "port", t.Port, "scope", t.Rule.Scope.String(),
			"algorithm", t.Rule.Limit.Algorithm, "mode", t.Rule.Mode)
	}
	manager := systemd{log}
	manager.ready()
	defer manager.stopping()
	go manager.watchdog(ctx, a.Alive)
	served := make(chan error, 1)
	go func() { served <- server.Serve(a, log) }()
	for {
		select {
		case <-ctx.Done():
			log.Info("stopping", "keep", keep)
			return errors.Join(server.Close(), <-served)
		case err := <-served:
			return err
		case <-hup:
			done := manager.reloading()
			log.Warn("SIGHUP: the configuration is read at start only; restart with --keep to apply changes and keep the counts")
			done()
		}
	}
}
