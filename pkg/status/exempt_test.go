package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestExemptions(t *testing.T) {
	of := func(network string, exempt, byHand bool) Exemption {
		return Exemption{Rule: "shop", Scope: "host", Port: 80, Network: network, Exempt: exempt, ByHand: byHand}
	}
	for _, test := range []struct {
		rule []string
		hand *Override
		want []Exemption
	}{
		{nil, nil, nil},
		{[]string{"10.0.0.0/8"}, nil, []Exemption{of("10.0.0.0/8", true, false)}},
		{nil, &Override{Exempt: []string{"fd00::/8"}}, []Exemption{of("fd00::/8", true, true)}},
		{[]string{"10.0.0.0/8", "::1/128"}, &Override{Exempt: []string{"10.0.0.0/8", "192.0.2.7/32"}, NotExempt: []string{"::1/128", "192.0.2.0/24"}},
			// By hand before the rule said the same; and what the rule no longer has.
			[]Exemption{of("10.0.0.0/8", true, false), of("::1/128", false, true), of("192.0.2.7/32", true, true)}},
	} {
		tgt := &Target{Rule: "shop", Scope: "host", Port: 80, Exempt: test.rule, Override: test.hand}
		if d := cmp.Diff(test.want, tgt.Exemptions()); d != "" {
			t.Errorf("%v, %+v: %s", test.rule, test.hand, d)
		}
	}
}
