// Package source knows what a target makes of the addresses of its clients: who
// is exempt, what counts as one source, and who is of which class. The kernel's
// programs look the same up in a table that is made of it.
package source

import (
	"cmp"
	"net/netip"
	"slices"
)

// Policy is what a target makes of addresses. The zero value makes nothing of
// them. Prefixes are as [Normal] returns them.
type Policy struct {
	// Exempt are never counted and never refused.
	Exempt []netip.Prefix

	// Limit is the most units of one source in flight or waiting; 0: any
	// number. Prefix4 and Prefix6 say how many bits of an address, 1 to 32 and 1
	// to 128, are a source.
	Limit            int
	Prefix4, Prefix6 int

	// Shared are counted as one source each, with a limit of their own.
	Shared []Range

	// Classes have a share of the target's limit for themselves.
	Classes []Class
}

// Range is a network that counts as one source.
type Range struct {
	Prefix netip.Prefix
	Limit  int
}

// Class is a part of a target's clients.
type Class struct {
	Sources []netip.Prefix
	Share   float64 // of the target's limit, 0 to 1; those of all classes together are 1 at most
}

// Entry is what is known of a prefix.
type Entry struct {
	Exempt bool
	Range  Range // that it is in; none where its Limit is 0
	Class  int   // the index in [Policy.Classes], and 1; 0 for none
}

// Normal returns a prefix with nothing behind its bits, and as one of IPv4 where
// it is a part of what IPv6 has for that (::ffff:0:0/96).
func Normal(p netip.Prefix) netip.Prefix {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

// Plain says that the policy makes nothing of addresses.
func (p *Policy) Plain() bool { return len(p.Exempt) == 0 && !p.Groups() }

// Groups says that units are counted by where they come from.
func (p *Policy) Groups() bool { return p.Limit > 0 || len(p.Shared) > 0 || len(p.Classes) > 0 }

// Table is a policy that addresses can be looked up in.
type Table struct {
	policy  Policy
	entries map[netip.Prefix]Entry
}

// NewTable makes the table of a policy, which must not be changed any more.
func NewTable(p Policy) *Table {
	t := &Table{policy: p, entries: make(map[netip.Prefix]Entry)}
	own := make(map[netip.Prefix][]func(*Entry))
	for _, x := range p.Exempt {
		own[x] = append(own[x], func(e *Entry) { e.Exempt = true })
	}
	for _, r := range p.Shared {
		own[r.Prefix] = append(own[r.Prefix], func(e *Entry) { e.Range = r })
	}
	for i, c := range p.Classes {
		for _, x := range c.Sources {
			own[x] = append(own[x], func(e *Entry) { e.Class = i + 1 })
		}
	}
	prefixes := make([]netip.Prefix, 0, len(own))
	for x := range own {
		prefixes = append(prefixes, x)
	}
	// The wide ones first: what is inside begins as they are.
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int { return cmp.Compare(a.Bits(), b.Bits()) })
	for _, x := range prefixes {
		e := t.find(x.Addr(), x.Bits())
		for _, apply := range own[x] {
			apply(&e)
		}
		t.entries[x] = e
	}
	return t
}

// Entries returns what is known of each prefix that the policy names, with what
// wider ones say: the longest prefix of an address tells all about it. The map
// is the table's own.
func (t *Table) Entries() map[netip.Prefix]Entry { return t.entries }

// Find returns what is known of an address.
func (t *Table) Find(a netip.Addr) Entry {
	a = a.Unmap()
	return t.find(a, a.BitLen())
}

func (t *Table) find(a netip.Addr, bits int) Entry {
	if len(t.entries) == 0 {
		return Entry{}
	}
	for ; bits >= 0; bits-- {
		p, err := a.Prefix(bits)
		if err != nil {
			break
		}
		if e, ok := t.entries[p]; ok {
			return e
		}
	}
	return Entry{}
}

// Source returns what an address counts as; the zero Prefix where sources are
// not told apart.
func (t *Table) Source(a netip.Addr) netip.Prefix {
	a = a.Unmap()
	if r := t.Find(a).Range; r.Limit > 0 {
		return r.Prefix
	}
	if t.policy.Limit == 0 {
		return netip.Prefix{}
	}
	bits := t.policy.Prefix6
	if a.Is4() {
		bits = t.policy.Prefix4
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}
