package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"headgate/pkg/status"
)

func TestListExempt(t *testing.T) {
	targets := []status.Target{
		{Rule: "shop", Scope: "host", Port: 8080, Exempt: []string{"10.0.0.0/8", "::1/128"},
			Override: &status.Override{Exempt: []string{"192.0.2.7/32"}, NotExempt: []string{"::1/128"}}},
		{Rule: "pool", Scope: "netns:blue", Port: 5432},
	}
	var b bytes.Buffer
	if err := listExempt(&b, targets, false); err != nil {
		t.Fatal(err)
	}
	want := `port 8080 of host, rule shop: 10.0.0.0/8 is exempt, by the rule
port 8080 of host, rule shop: ::1/128 is counted, by hand
port 8080 of host, rule shop: 192.0.2.7/32 is exempt, by hand
port 5432 of netns:blue, rule pool: nobody is exempt
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
	b.Reset()
	var got []status.Exemption
	if err := listExempt(&b, targets, true); err != nil || json.Unmarshal(b.Bytes(), &got) != nil {
		t.Fatalf("%v: %s", err, b.String())
	}
	if d := cmp.Diff(targets[0].Exemptions(), got); d != "" {
		t.Error(d)
	}
	b.Reset()
	if err := listExempt(&b, nil, true); err != nil || b.String() != "[]\n" {
		t.Errorf("of nothing: %q, %v", b.String(), err)
	}
}
