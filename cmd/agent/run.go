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
	"headgate/pkg/watch"
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

The file is read again when it changes, and on SIGHUP: all of it is put in
force, or, with an error in it, nothing. Counts and what was learned are kept.

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
			return protect(cmd.Context(), &s, keep, log)
		},
	}
	s.register(cmd)
	l.register(cmd)
	cmd.Flags().BoolVar(&keep, "keep", false, "when stopped, leave programs and counts in the kernel for the next agent")
	return cmd
}

// protect runs an agent until ctx ends. The address is taken first: an agent
// that nobody can ask must not begin to refuse.
func protect(ctx context.Context, s *settings, keep bool, log *slog.Logger) (err error) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)

	content := watch.Sum(s.file) // before it is read: no change goes unnoticed
	cfg, err := s.load()
	if err != nil {
		return err
	}
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
	manager := systemd{log}
	manager.ready()
	defer manager.stopping()
	go manager.watchdog(ctx, a.Alive)
	served := make(chan error, 1)
	go func() { served <- server.Serve(a, log) }()

	changed, unwatch := watchFile(s.file, content, log)
	defer unwatch()
	for {
		select {
		case <-ctx.Done():
			log.Info("stopping", "keep", keep)
			return errors.Join(server.Close(), <-served)
		case err := <-served:
			return err
		case <-hup:
			done := manager.reloading()
			_ = a.Reload(s.load) // it has said so, and goes on
			done()
		case <-changed:
			done := manager.reloading()
			_ = a.Reload(s.load)
			done()
		}
	}
}

// watchFile tells when a configuration file has changed, until stop. Where that
// cannot be told there is SIGHUP.
func watchFile(name string, content watch.Content, log *slog.Logger) (changed <-chan struct{}, stop func()) {
	if name == "" {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	changes := make(chan struct{}, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := watch.File(ctx, name, content, log, func() {
			select {
			case changes <- struct{}{}:
			default: // one is to be acted on already
			}
		})
		if err != nil {
			log.Warn("a change of the configuration is noticed on SIGHUP only", "error", err)
		}
	}()
	return changes, func() {
		cancel()
		<-ended
	}
}
