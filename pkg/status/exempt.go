package status

import "slices"

// Exemption says of a network whether it is exempt on a target, and who says so.
type Exemption struct {
	Rule    string `json:"rule"`
	Scope   string `json:"scope"`
	Port    uint16 `json:"port"`
	Network string `json:"network"`
	Exempt  bool   `json:"exempt"` // false: the rule says so, and a hand that it is counted
	ByHand  bool   `json:"by_hand"`
}

// Exemptions are those of the target: of the rule in its order, and then those
// that came by hand.
func (t *Target) Exemptions() []Exemption {
	var o Override
	if t.Override != nil {
		o = *t.Override
	}
	var all []Exemption
	add := func(network string, exempt, byHand bool) {
		all = append(all, Exemption{t.Rule, t.Scope, t.Port, network, exempt, byHand})
	}
	for _, n := range t.Exempt {
		counted := slices.Contains(o.NotExempt, n)
		add(n, !counted, counted)
	}
	for _, n := range o.Exempt {
		if !slices.Contains(t.Exempt, n) {
			add(n, true, true)
		}
	}
	return all
}
