package agent

import (
	"fmt"
	"net/netip"

	"headgate/pkg/loader"
	"headgate/pkg/pace"
	"headgate/pkg/status"
)

// group says in whose line a client waits: that of its class, and in that of its
// source. nil where all wait in one.
func (t *target) group() func(netip.Addr) pace.Group {
	rule := t.config.Rule
	if rule.PerSource.Limit == 0 && len(rule.Classes) == 0 {
		return nil
	}
	sources := t.sources
	return func(a netip.Addr) pace.Group {
		return pace.Group{Class: sources.Find(a).Class, Source: sources.Source(a)}
	}
}

// readClasses reads what the kernel has counted of the rule's classes.
func (t *target) readClasses(g *loader.Gate) (err error) {
	if len(t.config.Rule.Classes) == 0 {
		t.classes = nil
		return nil
	}
	if t.classes, err = g.Classes(t.id); err != nil {
		return fmt.Errorf("rule %s: %w", t.config.Rule.Name, err)
	}
	return nil
}

// othersName is what those are called that are of no class.
const othersName = "others"

// reportSources reports what is made of sources.
func (t *target) reportSources(st *status.Target) {
	exempt := 0
	for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
		if t.sources.Find(a).Exempt {
			exempt++
		}
	}
	st.Loopback = []string{"counted", "partly exempt", "exempt"}[exempt]

	free := st.Limit
	for i, c := range t.classes {
		class := status.Class{Name: othersName, InFlight: c.InFlight, Waiting: c.Waiting, RejectedTotal: c.Rejected}
		if i < len(t.config.Rule.Classes) {
			of := t.config.Rule.Classes[i]
			class.Name, class.Share = of.Name, of.Share
			class.Limit = loader.Guarantee(of.Share, st.Limit)
			free -= class.Limit
		} else {
			class.Limit = free
		}
		st.Classes = append(st.Classes, class)
	}
}
