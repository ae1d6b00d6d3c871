package source

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func prefixes(texts ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range texts {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func TestNormal(t *testing.T) {
	for in, want := range map[string]string{
		"10.1.2.3/8":          "10.0.0.0/8",
		"::ffff:10.1.2.3/104": "10.0.0.0/8",
		"::ffff:0:0/96":       "0.0.0.0/0",
		"::ffff:0:0/90":       "::ffc0:0:0/90",
		"2001:db8::1/32":      "2001:db8::/32",
	} {
		if got := Normal(netip.MustParsePrefix(in)).String(); got != want {
			t.Errorf("%s is %s, want %s", in, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	p := Policy{
		Exempt:  prefixes("10.0.0.0/8", "fd00::/8"),
		Limit:   20,
		Prefix4: 24, Prefix6: 64,
		Shared:  []Range{{netip.MustParsePrefix("100.64.0.0/10"), 50}},
		Classes: []Class{{Sources: prefixes("10.9.0.0/16", "100.64.9.0/24")}, {Sources: prefixes("2001:db8::/32")}},
	}
	table := NewTable(p)
	for text, want := range map[string]struct {
		Entry
		source string
	}{
		"192.0.2.7":         {Entry{}, "192.0.2.0/24"},
		"::ffff:192.0.2.7":  {Entry{}, "192.0.2.0/24"},
		"10.1.1.1":          {Entry{Exempt: true}, "10.1.1.0/24"},
		"10.9.1.1":          {Entry{Exempt: true, Class: 1}, "10.9.1.0/24"}, // a class is no way out of the exempt
		"100.64.9.1":        {Entry{Range: p.Shared[0], Class: 1}, "100.64.0.0/10"},
		"100.65.0.1":        {Entry{Range: p.Shared[0]}, "100.64.0.0/10"},
		"2001:db8::1":       {Entry{Class: 2}, "2001:db8::/64"},
		"2001:db8:0:0:8::1": {Entry{Class: 2}, "2001:db8::/64"},
		"fd00::1":           {Entry{Exempt: true}, "fd00::/64"},
	} {
		a := netip.MustParseAddr(text)
		if d := cmp.Diff(want.Entry, table.Find(a), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
			t.Errorf("%s: %s", text, d)
		}
		if got := table.Source(a).String(); got != want.source {
			t.Errorf("%s counts as %s, want %s", text, got, want.source)
		}
	}
	if !(&Policy{}).Plain() || p.Plain() || (&Policy{Exempt: p.Exempt}).Groups() {
		t.Error("plain or not?")
	}
}

// Whatever the prefixes, an address is what each list by itself says of it.
func TestTableIsEachListByItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		draw := func() []netip.Prefix {
			var ps []netip.Prefix
			for range random.IntN(5) {
				// Few addresses, so that they lie in one another.
				a := netip.AddrFrom4([4]byte{10, byte(random.IntN(2)), byte(random.IntN(2)), byte(random.IntN(2))})
				ps = append(ps, netip.PrefixFrom(a, random.IntN(33)).Masked())
			}
			return ps
		}
		p := Policy{Exempt: draw()}
		class := make(map[netip.Prefix]int)
		for i := range 2 {
			c := Class{}
			for _, x := range draw() {
				if class[x] == 0 {
					class[x] = i + 1
					c.Sources = append(c.Sources, x)
				}
			}
			p.Classes = append(p.Classes, c)
		}
		table := NewTable(p)
		for range 20 {
			a := netip.AddrFrom4([4]byte{10, byte(random.IntN(2)), byte(random.IntN(3)), byte(random.IntN(3))})
			got := table.Find(a)
			exempt, of, bits := false, 0, -1
			for _, x := range p.Exempt {
				exempt = exempt || x.Contains(a)
			}
			for x, c := range class {
				if x.Contains(a) && x.Bits() > bits {
					of, bits = c, x.Bits()
				}
			}
			if got.Exempt != exempt || got.Class != of {
				t.Fatalf("%v is %+v, want exempt %v, class %d", a, got, exempt, of)
			}
		}
	})
}
