package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"headgate/pkg/api"
	"headgate/pkg/config"
	"headgate/pkg/loader"
	"headgate/pkg/scope"
)

func newCheckCmd() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "check {-c FILE | -p PORT ...}",
		Short: "Check a configuration and say what it would attach where",
		Long: `Check reads a configuration, loads every program into the kernel without
attaching it, and says what would be attached where. Every error is reported
with its place, and the exit code is 1.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := s.load()
			if err != nil {
				return err
			}
			return check(cfg, cmd.OutOrStdout())
		},
	}
	s.register(cmd)
	return cmd
}

func check(cfg *config.Config, out io.Writer) error {
	var errs []error
	able, err := loader.Check()
	errs = append(errs, err, loader.CheckState(cfg.State), api.CheckWeb(cfg))
	root, err := scope.Cgroup2()
	errs = append(errs, err)
	for _, r := range cfg.Rules {
		ns, err := scope.OpenNetns(r.Scope.Netns)
		if err != nil {
			errs = append(errs, fmt.Errorf("rule %s: scope: %w", r.Name, err))
			continue
		}
		errs = append(errs, ns.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}

	p := &printer{w: out}
	p.printf("cgroup %s: count connections (sockops", root)
	if able[loader.CanRelease] {
		p.printf(", sock_release")
	}
	p.printf(")\n")
	for _, t := range cfg.Targets() {
		where := "at the lookup of its listener (sk_lookup)"
		if t.Rule.NeedsIngress() {
			where = "on every device of that network namespace (tc) and " + where
		}
		p.printf("port %d in %s, rule %s: admit %ss %s (%s, %s, signal %s)\n",
			t.Port, t.Rule.Scope, t.Rule.Name, t.Rule.Unit, where, t.Rule.Limit.Algorithm, t.Rule.Mode, t.Rule.Signal)
	}
	if able[loader.CanService] {
		p.printf("cgroups of the listeners of these ports: time requests (cgroup_skb)\n")
	}
	for _, c := range slices.Sorted(maps.Keys(able)) {
		if !able[c] {
			p.printf("this kernel cannot do %s: headgate would run without\n", c)
		}
	}
	p.printf("state in %s; status, metrics and health on %s\n", cfg.State, cfg.Listen)
	return p.err
}

// printer keeps the first error of a run of prints.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}
