package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"headgate/pkg/agent"
	"headgate/pkg/api"
	"headgate/pkg/config"
	"headgate/pkg/discovery"
	"headgate/pkg/loader"
	"headgate/pkg/privilege"
	"headgate/pkg/scope"
	"headgate/pkg/status"
)

func newCheckCmd() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "check {-c FILE | -p PORT ...}",
		Short: "Check a configuration and say what it would attach where",
		Long: `Check reads a configuration, loads every program into the kernel without
attaching it, and says what would be attached where, and what an agent has to be
allowed to do for that. Every error is reported with its place, and the exit code
is 1.`,
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
	for i := range cfg.Rules {
		if able != nil {
			errs = append(errs, agent.Lacking(&cfg.Rules[i], able))
		}
	}
	places, err := placesOf(cfg, root)
	errs = append(errs, discovery.Needs(cfg.Rules, kubernetesAPI))
	found, close, lookErr := lookAround(cfg, root)
	if lookErr == nil {
		defer close()
		var more error
		places, more = found.places(places, root)
		lookErr = more
	}
	errs = append(errs, lookErr)
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}

	p := &printer{w: out}
	p.printf("would attach\n")
	hooks := "sockops"
	if able[loader.CanRelease] {
		hooks += ", sock_release"
	}
	p.hook("cgroup "+root, hooks, "count connections")
	for _, at := range places {
		p.hook("network namespace "+at.scope, "sk_lookup", "admit: port "+list(at.ports))
		if len(at.ingress) == 0 {
			continue
		}
		p.hook("devices "+strings.Join(at.devices, ", ")+" of "+at.scope, "tc ingress", "hold, drop, or look at requests: port "+list(at.ingress))
		p.hook("packet filter of "+at.scope, "prerouting", "queue what has to wait")
	}
	if able[loader.CanService] {
		for _, at := range places {
			for _, path := range slices.Sorted(maps.Keys(at.cgroups)) {
				p.hook("cgroup "+status.Printable(path), "cgroup_skb", "time requests: port "+list(at.cgroups[path]))
			}
		}
	}

	if slices.ContainsFunc(cfg.Rules, func(r config.Rule) bool { return r.Signal == config.SignalAccept }) {
		p.hook("the host", string(loader.HookRead), "see applications read: signal accept")
	}

	p.printf("would protect\n")
	for _, t := range found.targets(cfg) {
		p.printf("  port %d in %s, rule %s: %ss, %s, %s, signal %s\n",
			t.Port, t.Rule.Scope, t.Rule.Name, t.Rule.Unit, t.Rule.Limit.Algorithm, t.Rule.Mode, t.Rule.Signal)
	}
	p.printf("needs %s\n", rights(cfg))
	p.printf("state in %s; status, metrics and health on %s\n", cfg.State, cfg.Listen)
	found.notes(p)
	for _, at := range places {
		if len(at.silent) > 0 {
			p.printf("note: nobody listens on port %s in %s; whoever will is timed in its cgroup then\n", list(at.silent), at.scope)
		}
	}
	for _, c := range slices.Sorted(maps.Keys(able)) {
		if !able[c] {
			p.printf("note: this kernel cannot do %s: %s\n", c, c.Otherwise())
		}
	}
	return p.err
}

// rights is what an agent has to be allowed to do: what it keeps as it runs.
func rights(cfg *config.Config) string {
	purposes := map[cap.Value]string{
		cap.NET_RAW:    "to answer clients that are held or dropped",
		cap.SYS_ADMIN:  "to enter other network namespaces",
		cap.SYS_PTRACE: "to find those of the processes of others",
	}
	var all []string
	for _, c := range privilege.Needed(cfg) {
		text := strings.ToUpper(c.String())
		if purpose, more := purposes[c]; more {
			text += " (" + purpose + ")"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// place is a network namespace with protected ports.
type place struct {
	cookie  uint64
	scope   string              // as the first rule names it
	ports   []uint16            // of all rules
	ingress []uint16            // of these, those decided on devices
	silent  []uint16            // of these, those that nobody listens on
	devices []string            // of the namespace
	cgroups map[string][]uint16 // of the listeners, and for which ports
}

// placesOf looks where the rules of a configuration would be attached, in the
// order of the file.
func placesOf(cfg *config.Config, root string) ([]*place, error) {
	var places []*place
	var errs []error
	known := make(map[uint64]*place) // by cookie: one may have several names
	for i := range cfg.Rules {
		r := &cfg.Rules[i]
		if r.Scope.Found() {
			continue
		}
		ns, err := scope.OpenNetns(r.Scope.Netns)
		if err != nil {
			errs = append(errs, fmt.Errorf("rule %s: scope: %w", r.Name, err))
			continue
		}
		at := known[ns.Cookie()]
		if at == nil {
			at = &place{cookie: ns.Cookie(), scope: r.Scope.String(), cgroups: make(map[string][]uint16)}
			known[ns.Cookie()] = at
			places = append(places, at)
		}
		at.ports = append(at.ports, r.Ports...)
		if r.NeedsIngress() {
			at.ingress = append(at.ingress, r.Ports...)
		}
		errs = append(errs, at.look(ns, r.Ports, root), ns.Close())
	}
	return places, errors.Join(errs...)
}

// look finds the devices of the namespace, and who listens on ports there.
func (at *place) look(ns *scope.Netns, ports []uint16, root string) error {
	var listeners []scope.Listener
	err := ns.Do(func() (err error) {
		devices, err := net.Interfaces()
		if err != nil {
			return fmt.Errorf("list devices: %w", err)
		}
		at.devices = nil
		for _, d := range devices {
			at.devices = append(at.devices, d.Name)
		}
		listeners, err = scope.Listeners()
		return err
	})
	if err != nil {
		return fmt.Errorf("scope %s: %w", at.scope, err)
	}
	for _, port := range ports {
		if !slices.ContainsFunc(listeners, func(l scope.Listener) bool { return l.Port == port }) {
			at.silent = append(at.silent, port)
		}
		for _, l := range listeners {
			if l.Port != port || root == "" {
				continue
			}
			path, err := scope.CgroupPath(root, l.CgroupID)
			if errors.Is(err, scope.ErrNoCgroup) {
				continue // gone, or not visible from here
			}
			if err != nil {
				return err
			}
			if !slices.Contains(at.cgroups[path], port) {
				at.cgroups[path] = append(at.cgroups[path], port)
			}
		}
	}
	return nil
}

// list names ports.
func list(ports []uint16) string {
	var all []string
	for _, p := range ports {
		all = append(all, strconv.Itoa(int(p)))
	}
	return strings.Join(all, ", ")
}

// hook is a line about what is attached to where, and for what.
func (p *printer) hook(where, what, purpose string) {
	p.printf("  %s: %s (%s)\n", where, purpose, what)
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
