package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"headgate/pkg/config"
	"headgate/pkg/discovery"
	"headgate/pkg/kubernetes"
)

// patience is how long check waits for the Kubernetes API.
const patience = 2 * time.Second

func kubernetesAPI() (*kubernetes.API, error) { return kubernetes.FromEnvironment(getenv) }

// surroundings are what is there now of what the rules name that comes and goes.
type surroundings struct {
	discovery.Result
	none []*config.Rule // for which nothing is
}

// lookAround looks for it. The namespaces are open until close.
func lookAround(cfg *config.Config, root string) (s surroundings, close func(), err error) {
	nothing := func() {}
	if !slices.ContainsFunc(cfg.Rules, func(r config.Rule) bool { return r.Scope.Found() }) || root == "" {
		return s, nothing, nil
	}
	f, err := discovery.New(root, kubernetesAPI, slog.New(slog.DiscardHandler))
	if err != nil {
		return s, nothing, err
	}
	s.Result = f.Settle(cfg.Rules, patience)
	for i := range cfg.Rules {
		r := &cfg.Rules[i]
		if r.Scope.Found() && !slices.ContainsFunc(s.Found, func(f discovery.Found) bool { return f.Rule.Name == r.Name }) {
			s.none = append(s.none, r)
		}
	}
	return s, func() { _ = f.Close() }, nil
}

// places adds what was found to the places that have a name.
func (s surroundings) places(all []*place, root string) ([]*place, error) {
	var errs []error
	for _, f := range s.Found {
		i := slices.IndexFunc(all, func(at *place) bool { return at.cookie == f.Netns.Cookie() })
		if i < 0 {
			i = len(all)
			all = append(all, &place{cookie: f.Netns.Cookie(), scope: f.Rule.Scope.String(), cgroups: make(map[string][]uint16)})
		}
		at := all[i]
		at.ports = append(at.ports, f.Port)
		if f.Rule.NeedsIngress() {
			at.ingress = append(at.ingress, f.Port)
		}
		errs = append(errs, at.look(f.Netns, []uint16{f.Port}, root))
	}
	return all, errors.Join(errs...)
}

// targets are those that would be protected now, in the order of the rules.
func (s surroundings) targets(cfg *config.Config) []config.Target {
	var all []config.Target
	for i := range cfg.Rules {
		r := &cfg.Rules[i]
		for _, f := range s.Found {
			if f.Rule.Name == r.Name {
				all = append(all, f.Target)
			}
		}
		if r.Scope.Found() {
			continue
		}
		for _, port := range r.Ports {
			all = append(all, config.Target{Rule: r, Port: port})
		}
	}
	return all
}

// notes says what is not as somebody may think it is.
func (s surroundings) notes(p *printer) {
	for _, text := range s.Problems {
		p.printf("note: it cannot be known now what there is to protect: %s\n", text)
	}
	for _, l := range s.Left {
		at := l.Scope
		if l.Port != 0 {
			at = fmt.Sprintf("port %d in %s", l.Port, l.Scope)
		}
		p.printf("note: rule %s would not protect %s: %s\n", l.Rule, at, l.Reason)
	}
	for _, r := range s.none {
		p.printf("note: rule %s finds nothing in %s now; what comes is protected within 2 seconds\n", r.Name, r.Scope)
	}
}
