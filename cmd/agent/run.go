package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"headgate/pkg/agent"
	"headgate/pkg/api"
	"headgate/pkg/config"
	"headgate/pkg/control"
	"headgate/pkg/loader"
	"headgate/pkg/privilege"
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
			log, end, err := l.logger(cmd)
			if err != nil {
				return err
			}
			defer end()
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
	signal.Ignore(syscall.SIGPIPE) // to go on matters more than who reads the log

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
		return beside(cfg.State, err)
	}
	socket, err := listenSocket(cfg, log)
	if err != nil {
		return errors.Join(beside(cfg.State, err), server.Close())
	}
	a, err := agent.Start(cfg, version, log)
	if err != nil {
		return errors.Join(err, server.Close(), socket.Close())
	}
	defer func() {
		if keep {
			err = errors.Join(err, a.Stop())
		} else {
			err = errors.Join(err, a.Remove())
		}
	}()
	left, err := privilege.Drop(privilege.Needed(cfg))
	if err != nil {
		return err
	}
	log.Info("rights that are not needed any more are given up", "left", fmt.Sprint(left))
	manager := systemd{log}
	manager.ready()
	defer manager.stopping()
	go manager.watchdog(ctx, a.Alive)
	served, serving := make(chan error, 2), 1
	go func() { served <- server.Serve(a, log) }()

	reloading := &reloader{Agent: a, settings: s, manager: manager}
	if socket != nil {
		serving++
		go func() { served <- socket.Serve(reloading, log) }()
	}
	defer func() {
		err = errors.Join(err, server.Close(), socket.Close())
		for range serving {
			err = errors.Join(err, <-served)
		}
	}()

	debug.FreeOSMemory() // to load and verify programs takes some that is not needed again
	changed, unwatch := watchFile(s.file, content, log)
	defer unwatch()
	for {
		select {
		case <-ctx.Done():
			log.Info("stopping", "keep", keep)
			return nil
		case err := <-served:
			serving--
			return err
		case <-hup:
			_ = reloading.Reload(control.Reload{}) // it has said so, and goes on
		case <-changed:
			_ = reloading.Reload(control.Reload{})
		}
	}
}

// An agent that begins has its state directory a moment after its address, at the
// latest after so many looks so far apart.
const (
	besideLooks = 10
	besideEvery = 50 * time.Millisecond
)

// beside adds to err, that an agent cannot have its address or socket, which agent
// is there, if one is.
func beside(state string, err error) error {
	for range besideLooks {
		if there := loader.InUse(state); there != nil {
			return errors.Join(there, err)
		}
		if !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, api.ErrSocketInUse) {
			break
		}
		time.Sleep(besideEvery)
	}
	return err
}

// reloader is an agent that reads its configuration as it did at the start.
type reloader struct {
	*agent.Agent
	settings *settings
	manager  systemd
}

// Reload implements [api.Control].
func (r *reloader) Reload(from control.Reload) error {
	defer r.manager.reloading()()
	return r.Agent.Reload(func() (*config.Config, error) { return r.settings.loadFrom(from.SSHPort) })
}

// listenSocket takes the socket for changes. The default one can be done
// without: an agent that is no root, or a second one, still protects.
func listenSocket(cfg *config.Config, log *slog.Logger) (*api.Socket, error) {
	socket, err := api.ListenSocket(cfg)
	if err != nil && cfg.Socket == config.Default().Socket {
		log.Warn("nobody can tell this agent to change anything; it goes on without", "error", err)
		return nil, nil
	}
	return socket, err
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
