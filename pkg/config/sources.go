package config

import (
	"net/netip"

	"headgate/pkg/source"
)

// PerSource bounds the units of one source. The zero value, but for the lengths
// of prefixes, bounds none.
type PerSource struct {
	// Limit is the most units of one source, 1 to 1000000, in flight or waiting.
	// What arrives beyond is refused at once, for the reason source: it does not
	// wait, or a source could fill the queue. Clients behind one address (a
	// company, a mobile network, a load balancer) are one source.
	Limit int `yaml:"limit"`

	// Prefix4 is how many bits of an IPv4 address are a source, 1 to 32.
	Prefix4 int `yaml:"prefix4"`

	// Prefix6 is the same for IPv6, 1 to 128. A site has at least 64 bits for
	// itself, and as a rule 56 or 48 are its network.
	Prefix6 int `yaml:"prefix6"`

	// Shared are networks that many clients share, such as carrier-grade NAT:
	// {100.64.0.0/10: 50}. Each is one source with a limit of its own, 1 to
	// 1000000, however large it is. Of two that lie in each other the smaller
	// counts. Inside braces YAML wants an IPv6 network in quotes.
	Shared []source.Range `yaml:"shared"`
}

// Class is a part of the clients that has a share of the limit for itself.
type Class struct {
	// Name appears in status and metrics: like that of a rule, and no two of a
	// rule the same. All that are of no class are shown as others.
	Name string `yaml:"name"`

	// Sources are the networks of its clients, at least one. Of two that lie in
	// each other the smaller counts.
	Sources []netip.Prefix `yaml:"sources"`

	// Share is how much of the limit is guaranteed, above 0 to 1; those of all
	// classes together are at most 1. Of a limit of 10, 0.3 is 3 units; of a
	// limit of 2 it is none.
	Share float64 `yaml:"share"`
}

// SourcePolicy is what the rule makes of the addresses of clients.
func (r *Rule) SourcePolicy() source.Policy {
	p := source.Policy{Exempt: r.Exempt}
	if r.PerSource.Limit > 0 {
		p.Limit = r.PerSource.Limit
		p.Prefix4, p.Prefix6 = r.PerSource.Prefix4, r.PerSource.Prefix6
		p.Shared = r.PerSource.Shared
	}
	for _, c := range r.Classes {
		p.Classes = append(p.Classes, source.Class{Sources: c.Sources, Share: c.Share})
	}
	return p
}
