package config

import (
	"fmt"
	"net/netip"

	"github.com/goccy/go-yaml/ast"

	"headgate/pkg/source"
)

// What can be set, within what the programs have room for.
const (
	maxSourceLimit = 1_000_000
	maxClasses     = 14    // of a party's bits, see bpf/types.h
	maxPrefixes    = 30000 // of all targets: twice as many find room while one configuration follows another
)

// network reads a prefix; an address is one with all its bits.
func (d *decoder) network(v value) (netip.Prefix, bool) {
	s, ok := d.scalar(v, "a network such as 10.0.0.0/8")
	if !ok {
		return netip.Prefix{}, false
	}
	return d.parseNetwork(v.at, s)
}

func (d *decoder) parseNetwork(at place, s string) (netip.Prefix, bool) {
	p, err := ParseNetwork(s)
	if err != nil {
		d.failf(at, "%v", err)
	}
	return p, err == nil
}

// ParseNetwork reads a network or a single address, as all keys take it that name
// clients.
func ParseNetwork(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if a, notAddr := netip.ParseAddr(s); err != nil && notAddr == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	if err != nil {
		return p, fmt.Errorf(`%s is not a network such as 10.0.0.0/8 or "fd00::/8", nor an address`, quote(s))
	}
	if p != p.Masked() {
		return p, fmt.Errorf("%s has bits set behind the first %d; the network is %s", quote(s), p.Bits(), p.Masked())
	}
	return source.Normal(p), nil
}

// networks reads a list of them, none twice.
func (d *decoder) networks(v value, dst *[]netip.Prefix) {
	*dst = nil
	seen := make(map[netip.Prefix]place)
	d.items(v, func(v value) {
		p, ok := d.network(v)
		if !ok {
			return
		}
		if first, twice := seen[p]; twice {
			d.failf(v.at, "%s is at %s already", p, first)
			return
		}
		seen[p] = v.at
		*dst = append(*dst, p)
	})
}

func (d *decoder) perSource(v value, s *PerSource) {
	limit := func(v value, dst *int) bool {
		n, ok := d.number(v, 1, maxSourceLimit)
		if ok {
			*dst = n
		}
		return ok
	}
	bits := func(v value, dst *int, most int) {
		if n, ok := d.number(v, 1, most); ok {
			*dst = n
		}
	}
	d.fields(v, map[string]func(value){
		"limit":   func(v value) { limit(v, &s.Limit) },
		"prefix4": func(v value) { bits(v, &s.Prefix4, 32) },
		"prefix6": func(v value) { bits(v, &s.Prefix6, 128) },
		"shared": func(v value) {
			s.Shared = nil
			shared := v.at.key
			seen := make(map[netip.Prefix]place)
			d.entries(v, func(name string, at place, v value) {
				r := source.Range{}
				if v.shape != nil {
					limit(v, &r.Limit)
					return
				}
				var ok bool
				if r.Prefix, ok = d.parseNetwork(at, name); !ok || !limit(v, &r.Limit) {
					return
				}
				if first, twice := seen[r.Prefix]; twice {
					d.failf(at, "%s is at %s already", r.Prefix, first)
					return
				}
				seen[r.Prefix] = at
				d.at[shared+"["+r.Prefix.String()+"]"] = at // as it is spelled when it is looked for
				s.Shared = append(s.Shared, r)
			})
		},
	})
}

func (d *decoder) classes(v value, dst *[]Class) {
	*dst = nil
	d.items(v, func(v value) {
		var c Class
		d.fields(v, map[string]func(value){
			"name":    func(v value) { d.text(v, &c.Name) },
			"sources": func(v value) { d.networks(v, &c.Sources) },
			"share": func(v value) {
				if v.describe(Shape{Kind: KindNumber, Min: 0, Max: 1}) {
					return
				}
				switch f, ok := d.float(v); {
				case !ok:
				case f <= 0 || f > 1:
					d.failf(v.at, "%v is not above 0 and at most 1", f)
				default:
					c.Share = f
				}
			},
		})
		*dst = append(*dst, c)
	})
}

// entries reads a mapping whose keys the user chooses.
func (d *decoder) entries(v value, read func(name string, at place, v value)) {
	if v.shape != nil {
		item := new(Shape)
		read("", place{}, value{shape: item})
		v.describe(Shape{Kind: KindMap, Items: item})
		return
	}
	switch n := v.node.(type) {
	case *ast.NullNode:
	case *ast.MappingNode:
		for _, kv := range n.Values {
			if d.full() {
				return
			}
			name := kv.Key.GetToken().Value
			at := tokenPlace(d.file, kv.Key.GetToken())
			at.key = v.at.key + "[" + name + "]"
			where := at
			if _, null := kv.Value.(*ast.NullNode); !null {
				where = nodePlace(d.file, kv.Value)
				where.key = at.key
			}
			d.at[at.key] = at
			read(name, at, value{node: kv.Value, at: where})
		}
	default:
		d.failf(v.at, "want keys with values, not %s", kind(v.node))
	}
}
