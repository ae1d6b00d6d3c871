package config

import (
	"net/netip"
	"strconv"
)

// othersName is what status and metrics call those that are of no class.
const othersName = "others"

// validateSources checks what a rule makes of sources.
func (d *decoder) validateSources(r *Rule, o origin) {
	for i, p := range r.Exempt {
		if p.Bits() == 0 && !r.Force {
			d.failf(d.whereRule(o, index("exempt", i)), "%s exempts everybody; set force: true if that is meant", p)
		}
	}
	if at, given := d.own(o, "per_source"); given && r.PerSource.Limit == 0 {
		d.failf(at, "has no limit")
	}
	if r.PerSource.Limit > 0 {
		for _, s := range r.PerSource.Shared {
			d.validateNotExempt(r, o, s.Prefix, d.whereRule(o, "per_source.shared["+s.Prefix.String()+"]"), "so that nothing of it is ever counted")
		}
	}
	d.validateClasses(r, o)
}

// validateNotExempt refuses to make something of a network that nothing is made
// of, since it is exempt.
func (d *decoder) validateNotExempt(r *Rule, o origin, p netip.Prefix, at place, so string) {
	if r.Force {
		return
	}
	for i, e := range r.Exempt {
		if e.Bits() <= p.Bits() && e.Contains(p.Addr()) {
			d.failf(at, "%s is exempt by %s at %s, %s; set force: true if that is meant", p, e, d.whereRule(o, index("exempt", i)), so)
			return
		}
	}
}

func (d *decoder) validateClasses(r *Rule, o origin) {
	if len(r.Classes) > maxClasses {
		d.failf(d.whereRule(o, index("classes", maxClasses)), "more than %d classes", maxClasses)
		return
	}
	names, networks := make(map[string]place), make(map[netip.Prefix]place)
	sum := 0.0
	for i, c := range r.Classes {
		at := d.whereRule(o, index("classes", i))
		name := d.whereRule(o, index("classes", i)+".name")
		switch first, twice := names[c.Name]; {
		case !ruleName.MatchString(c.Name):
			if c.Name == "" {
				name = at
			}
			d.failf(name, "the name %s is not 1 to 63 letters, digits, dots, dashes and underscores", quote(c.Name))
		case c.Name == othersName:
			d.failf(name, "%s is what those are called that are of no class", othersName)
		case twice:
			d.failf(name, "a class named %s is at %s already", c.Name, first)
		default:
			names[c.Name] = name
		}
		if len(c.Sources) == 0 {
			d.failf(at, "has no sources")
		}
		for j, p := range c.Sources {
			here := d.whereRule(o, index(index("classes", i)+".sources", j))
			if first, twice := networks[p]; twice && first != here {
				d.failf(here, "%s is of the class at %s already", p, first)
				continue
			}
			networks[p] = here
			d.validateNotExempt(r, o, p, here, "so that it has no use for a share")
		}
		if c.Share == 0 && d.whereRule(o, index("classes", i)+".share").line == 0 {
			d.failf(at, "has no share")
		}
		sum += c.Share
		// Decimal fractions do not add up exactly.
		if sum > 1+1e-9 {
			d.failf(d.whereRule(o, index("classes", i)+".share"), "the shares up to here are %s, more than the whole limit", decimal(float64(int(sum*1e6+0.5))/1e6))
			return
		}
	}
}

// prefixes is how many networks a rule names, all of its targets together.
func (r *Rule) prefixes() int {
	n := len(r.Exempt) + len(r.PerSource.Shared)
	for _, c := range r.Classes {
		n += len(c.Sources)
	}
	return n * len(r.Ports)
}

func index(key string, i int) string { return key + "[" + strconv.Itoa(i) + "]" }
