package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"

	"headgate/pkg/source"
)

// MaxClasses is the most classes that a target can have.
const MaxClasses = len(headgatePolicy{}.Share) - firstClass

const (
	classOthers = 1 // CLASS_OTHERS: of all sources that no class has
	firstClass  = 2 // of those that are configured

	shareBits = 31 // SHARE_BITS

	// partySource are the bits of a party that say which source, PARTY_SOURCE.
	partySource = ^uint64(1<<14 - 1)

	// mapped is where IPv4 is among the addresses of IPv6, bits.
	mapped = 96
)

// sources is what the kernel knows of addresses, as far as it was told.
type sources struct {
	wanted   map[TargetKey]source.Policy
	policies map[uint32]headgatePolicy
	prefixes map[uint32]map[headgateSourceKey]headgateSource
	count    int // of all prefixes
}

// readSources reads what a predecessor has told the kernel.
func (g *Gate) readSources() error {
	g.sources = sources{
		wanted:   make(map[TargetKey]source.Policy),
		policies: make(map[uint32]headgatePolicy),
		prefixes: make(map[uint32]map[headgateSourceKey]headgateSource),
	}
	for _, id := range g.ids {
		var p headgatePolicy
		if err := g.maps[headgateMapPolicies].Lookup(id, &p); err != nil {
			return fmt.Errorf("read what is known of sources: %w", err)
		}
		g.sources.policies[id] = p
	}
	var key headgateSourceKey
	var value headgateSource
	all := g.maps[headgateMapSources].Iterate()
	for all.Next(&key, &value) {
		g.sources.note(key, value)
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("read what is known of sources: %w", err)
	}
	return nil
}

func (s *sources) note(key headgateSourceKey, value headgateSource) {
	if s.prefixes[key.Target] == nil {
		s.prefixes[key.Target] = make(map[headgateSourceKey]headgateSource)
	}
	if _, known := s.prefixes[key.Target][key]; !known {
		s.count++
	}
	s.prefixes[key.Target][key] = value
}

func (s *sources) forget(key headgateSourceKey) {
	delete(s.prefixes[key.Target], key)
	s.count--
}

// SetSources says what a target makes of its clients' addresses, from now on; a
// target that is yet to be added begins with it. What was in force and still is
// stays so at every moment. Connections that are there already follow with the
// next [Gate.Adopt] of their namespace. [ErrFull] when there is no room; nothing
// is changed then.
func (g *Gate) SetSources(key TargetKey, p source.Policy) error {
	id, ok := g.ids[key]
	if !ok {
		g.sources.wanted[key] = p
		return nil
	}
	if err := g.setSources(id, p); err != nil {
		return err
	}
	g.sources.wanted[key] = p
	return nil
}

// SetExempt is [Gate.SetSources] for the exempt alone.
func (g *Gate) SetExempt(key TargetKey, exempt []netip.Prefix) error {
	p := g.sources.wanted[key]
	p.Exempt = exempt
	return g.SetSources(key, p)
}

func (g *Gate) setSources(id uint32, p source.Policy) error {
	if len(p.Classes) > MaxClasses {
		return fmt.Errorf("%d classes, and there is room for %d", len(p.Classes), MaxClasses)
	}
	policy := packPolicy(p, g.sources.policies[id])
	want := packPrefixes(id, source.NewTable(p).Entries(), policy.Seed)
	have := g.sources.prefixes[id]
	fresh := 0
	for key := range want {
		if _, known := have[key]; !known {
			fresh++
		}
	}
	// Those that go are still there while the others come.
	if room := int(g.maps[headgateMapSources].MaxEntries()); g.sources.count+fresh > room {
		return fmt.Errorf("%d more prefixes of sources, beside %d, are more than %d: %w", fresh, g.sources.count, room, ErrFull)
	}
	for key, value := range want {
		if old, known := have[key]; known && old == value {
			continue
		}
		if err := g.maps[headgateMapSources].Put(key, value); err != nil {
			return fmt.Errorf("tell of a source: %w", err)
		}
		g.sources.note(key, value)
	}
	if err := g.maps[headgateMapPolicies].Put(id, policy); err != nil {
		return fmt.Errorf("tell of sources: %w", err)
	}
	g.sources.policies[id] = policy
	g.flagSources(id)
	for key := range maps.Clone(have) {
		if _, stays := want[key]; stays {
			continue
		}
		if err := g.maps[headgateMapSources].Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget a source: %w", err)
		}
		g.sources.forget(key)
	}
	g.flagSources(id)
	return nil
}

// sourceFlags say whether where a unit comes from matters. Units of a party may
// be there for as long as they like after it has ceased to.
func (g *Gate) sourceFlags(id uint32) (flags headgateTargetFlags) {
	p := g.sources.policies[id]
	if len(g.sources.prefixes[id]) > 0 || p.SourceLimit > 0 || p.Classes > 0 {
		flags |= headgateTargetFlagsTARGET_SOURCES
	}
	if p.Generation > 0 {
		flags |= headgateTargetFlagsTARGET_PARTIES
	}
	return flags
}

// flagSources puts that in force before the next order does.
func (g *Gate) flagSources(id uint32) {
	flags := &g.confs.elements[id].Flags
	*flags = *flags&^(headgateTargetFlagsTARGET_SOURCES|headgateTargetFlagsTARGET_PARTIES) | g.sourceFlags(id)
}

// dropSources forgets what an earlier target of that number has left.
func (g *Gate) dropSources(id uint32) error {
	err := errors.Join(
		g.maps[headgateMapPolicies].Put(id, headgatePolicy{}),
		g.maps[headgateMapClasses].Put(id, headgateParts{}),
	)
	delete(g.sources.policies, id)
	for key := range maps.Clone(g.sources.prefixes[id]) {
		if gone := g.maps[headgateMapSources].Delete(key); gone != nil && !errors.Is(gone, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, gone)
		}
		g.sources.forget(key)
	}
	return err
}

// packPolicy keeps the seed of the policy before, under which units are counted.
func packPolicy(p source.Policy, before headgatePolicy) headgatePolicy {
	k := headgatePolicy{
		Seed:        before.Seed,
		SourceLimit: clampUint32(p.Limit),
		Generation:  before.Generation,
	}
	for k.Seed == 0 {
		k.Seed = rand.Uint64()
	}
	k.Mask4 = binary.NativeEndian.Uint32(net.CIDRMask(p.Prefix4, 32))
	mask6 := net.CIDRMask(p.Prefix6, 128)
	for i := range k.Mask6 {
		k.Mask6[i] = binary.NativeEndian.Uint32(mask6[4*i:])
	}
	if len(p.Classes) > 0 {
		k.Classes = uint32(len(p.Classes)) + classOthers
	}
	for i, c := range p.Classes {
		k.Share[firstClass+i] = packShare(c.Share)
	}
	if k.Share != before.Share || p.Groups() && k.Generation == 0 {
		k.Generation++
	}
	return k
}

// packShare rounds up, by less than a unit of any limit, so that 0.3 of 10 is 3.
func packShare(share float64) uint32 { return uint32(math.Ceil(share * (1 << shareBits))) }

// Guarantee is how many units of a limit are guaranteed to a class of that share.
func Guarantee(share float64, limit int) int {
	return int(uint64(clampUint32(limit)) * uint64(packShare(share)) >> shareBits)
}

func packPrefixes(id uint32, entries map[netip.Prefix]source.Entry, seed uint64) map[headgateSourceKey]headgateSource {
	all := make(map[headgateSourceKey]headgateSource, len(entries))
	around := false // an IPv6 prefix has all of IPv4 in it
	for prefix, e := range entries {
		value := headgateSource{Limit: clampUint32(e.Range.Limit)}
		if e.Exempt {
			value.Exempt = 1
		}
		if e.Class > 0 {
			value.Class = uint32(firstClass + e.Class - 1)
		}
		if e.Range.Limit > 0 {
			value.Range = rangeKey(e.Range.Prefix, seed)
		}
		all[prefixKey(id, prefix)] = value
		around = around || prefix.Addr().Is6() && prefix.Contains(netip.AddrFrom16(netip.IPv4Unspecified().As16()))
	}
	if key := prefixKey(id, netip.PrefixFrom(netip.IPv4Unspecified(), 0)); around {
		if _, known := all[key]; !known {
			all[key] = headgateSource{}
		}
	}
	return all
}

// prefixKey is the key of the kernel's table. IPv4 is v4-mapped there.
func prefixKey(id uint32, p netip.Prefix) headgateSourceKey {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += mapped
	}
	key := headgateSourceKey{Length: uint32(32 + bits), Target: id}
	address := p.Addr().As16()
	for i := range key.Address.Word {
		key.Address.Word[i] = binary.NativeEndian.Uint32(address[4*i:])
	}
	return key
}

// rangeKey is what the units of a range are counted under.
func rangeKey(p netip.Prefix, seed uint64) uint64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, seed)
	fmt.Fprint(h, p)
	if key := h.Sum64() & partySource; key != 0 {
		return key
	}
	return ^partySource + 1
}

// ClassReading is what the kernel has counted of a class.
type ClassReading struct {
	InFlight int
	Waiting  int
	Rejected uint64
}

// Classes returns what the kernel has counted of the classes of a target, in
// their order, and at the end of all units that are of none of them.
func (g *Gate) Classes(id uint32) ([]ClassReading, error) {
	var parts headgateParts
	if err := g.maps[headgateMapClasses].Lookup(id, &parts); err != nil {
		return nil, fmt.Errorf("read classes: %w", err)
	}
	n := int(g.sources.policies[id].Classes)
	if n == 0 {
		return nil, nil
	}
	reading := func(class int) ClassReading {
		c := &parts.Class[class]
		return ClassReading{InFlight: int(max(c.Own+c.Free, 0)), Waiting: int(max(c.Waiting, 0)), Rejected: c.Rejected}
	}
	var all []ClassReading
	for class := firstClass; class <= n; class++ {
		all = append(all, reading(class))
	}
	return append(all, reading(classOthers)), nil
}

// exempts says whether connections of a client are not counted.
func (g *Gate) exempts(id uint32, client netip.Addr) bool {
	var s headgateSource
	err := g.maps[headgateMapSources].Lookup(prefixKey(id, netip.PrefixFrom(client, client.BitLen())), &s)
	return err == nil && s.Exempt != 0
}
