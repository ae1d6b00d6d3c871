package agent

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/pkg/config"
	"headgate/pkg/controller"
	"headgate/pkg/events"
)

// That a limit is no longer set by hand is told once, also when it is the same
// number as before.
func TestTellCleared(t *testing.T) {
	rule := config.DefaultRule()
	rule.Name = "shop"
	for why, end := range map[string]func(t *target){
		"cleared by hand": func(t *target) { t.clearLimit(2*time.Second, "cleared by hand") },
		"what was set by hand has expired": func(t *target) {
			if t.expire(time.Second - 1) {
				t.change.reason = "it expired too early"
			}
			t.expire(time.Second)
		},
	} {
		a := &Agent{events: events.NewBus(8, time.Now)}
		limit := 20
		tgt := &target{config: config.Target{Port: 8080, Rule: &rule}, decision: controller.Decision{Limit: 20}}
		tgt.told.limit, tgt.told.before = 20, 20
		tell := func() {
			a.tellCleared(tgt)
			a.tellLimit(tgt, 2*time.Second)
		}
		tell()
		tgt.overridden.limit, tgt.overridden.until = &limit, time.Second
		tell()
		end(tgt)
		tell()
		tell()
		var got []string
		for r := a.events.After(0); ; {
			e, ok := r.Poll()
			if !ok {
				break
			}
			if e.Type != events.Operator || e.Rule != "shop" || e.Port != 8080 {
				t.Errorf("%s: %+v", why, e)
			}
			got = append(got, e.Message)
		}
		if d := cmp.Diff([]string{why + ": the limit is that of guarded again, 20"}, got); d != "" {
			t.Errorf("%s: %s", why, d)
		}
		if tgt.change.reason != why {
			t.Errorf("reason of the change: %q", tgt.change.reason)
		}
	}
}

// A change of a rule names both when it is another rule that protects the port now.
func TestDescribeRetuning(t *testing.T) {
	of := func(name string, s config.Scope) *config.Rule {
		r := config.DefaultRule()
		r.Name, r.Scope = name, s
		return &r
	}
	host, blue := config.Scope{}, config.Scope{Netns: "blue"}
	for _, test := range []struct {
		was, is *config.Rule
		want    string
		attrs   []any
	}{
		{of("shop", host), of("shop", host), "the rule of the port has changed", nil},
		{of("shop", host), of("web", host), "the port goes over to another rule", []any{"former_rule", "shop", "former_scope", "host"}},
		{of("shop", blue), of("shop", host), "the port goes over to another rule", []any{"former_rule", "shop", "former_scope", "netns:blue"}},
	} {
		got, attrs := describe(test.was, test.is)
		if got != test.want || !cmp.Equal(attrs, test.attrs) {
			t.Errorf("%s to %s: %q, %v", test.was.Name, test.is.Name, got, attrs)
		}
	}
}
