package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"headgate/pkg/config"
)

var getenv = os.LookupEnv

// settings are the flags from which a configuration is made.
type settings struct {
	file     string
	ports    []string
	force    bool
	sshPort  uint16             // of the session that the command was started from
	override map[string]*string // by key of the configuration
	flags    *pflag.FlagSet
}

// overridable are the keys of the configuration that a flag can replace.
var overridable = []struct{ key, usage string }{
	{"listen", "`address` that metrics, health and status are served on"},
	{"web_config", "`file` that turns on TLS and authentication for it"},
	{"socket", "unix socket that changes are asked for on, a `path` or none"},
	{"socket_group", "`group` that may use it"},
	{"state", "`directory` on a bpffs that the kernel's part is pinned in"},
	{"window", "`time` between two readings, 10ms to 10s"},
	{"lease", "`time` after which every gate opens when the agent is gone"},
	{"mode", "enforce, or observe: count and refuse nobody"},
}

func (s *settings) register(cmd *cobra.Command) {
	f := cmd.Flags()
	s.flags = f
	s.override = make(map[string]*string)
	f.StringVarP(&s.file, "config", "c", "", "configuration `file`")
	f.StringArrayVarP(&s.ports, "port", "p", nil, "protect this `port` with all defaults; may be repeated")
	f.BoolVar(&s.force, "force", false, "allow what looks like a mistake that locks everybody out")
	d := config.Default()
	defaults := map[string]string{
		"listen": d.Listen, "socket": d.Socket, "state": d.State, "window": d.Window.String(),
		"lease": d.Lease.String(), "mode": string(d.Mode),
	}
	for _, o := range overridable {
		usage := o.usage
		if v := defaults[o.key]; v != "" {
			usage += fmt.Sprintf(" (default %s)", v)
		}
		s.override[o.key] = f.String(flagName(o.key), "", usage)
	}
}

func flagName(key string) string { return strings.ReplaceAll(key, "_", "-") }

// load makes the configuration: flags over environment over file.
func (s *settings) load() (*config.Config, error) {
	if s.sshPort == 0 {
		s.sshPort = config.SSHPort(getenv)
	}
	return s.loadFrom(0)
}

// loadFrom is load for somebody who asks from an ssh session with that port; 0
// for none. That of the start counts as well.
func (s *settings) loadFrom(sshPort uint16) (*config.Config, error) {
	if s.file == "" && len(s.ports) == 0 {
		return nil, usageError{errors.New("nothing to protect: give a port (-p 8080) or a configuration file (-c FILE)")}
	}
	flags := func(key string) (text, place string, ok bool) {
		v := s.override[key]
		name := flagName(key)
		if v == nil || !s.flags.Changed(name) {
			return "", "", false
		}
		return *v, "--" + name, true
	}
	return config.Load(config.Input{
		File:      s.file,
		Ports:     s.ports,
		Overrides: []config.Override{flags, config.Environment(getenv)},
		SSHPorts:  []uint16{s.sshPort, sshPort},
		Force:     s.force,
	})
}

// logging are the flags of the log.
type logging struct {
	level  string
	format string
}

func (l *logging) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.level, "log-level", "info", "debug, info, warn or error")
	cmd.Flags().StringVar(&l.format, "log-format", "text", "text or json")
}

// logger returns a logger to the standard error of a command, and what ends it. It
// waits for nobody who reads that.
func (l *logging) logger(cmd *cobra.Command) (_ *slog.Logger, end func(), err error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, nil, usageError{fmt.Errorf("--log-level: %q is none of debug, info, warn, error", l.level)}
	}
	opts := &slog.HandlerOptions{Level: level}
	var handler func(io.Writer) slog.Handler
	switch l.format {
	case "text":
		handler = func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, opts) }
	case "json":
		handler = func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, opts) }
	default:
		return nil, nil, usageError{fmt.Errorf("--log-format: %q is neither text nor json", l.format)}
	}
	to := newLines(cmd.ErrOrStderr(), reportLost(handler(cmd.ErrOrStderr())))
	return slog.New(handler(to)), to.Close, nil
}
