package events

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func at(s string) *netip.AddrPort {
	a := netip.MustParseAddrPort(s)
	return &a
}

func ptr[T any](v T) *T { return &v }

func TestText(t *testing.T) {
	for want, e := range map[string]Event{
		`shop:8080 192.0.2.7:4711 refused: the limit was reached`: {
			Type: Rejection, Rule: "shop", Scope: "host", Port: 8080, Client: at("192.0.2.7:4711"), Reason: "limit"},
		`shop:8080 (netns:blue) [2001:db8::1]:5 would have been refused: its turn in the pace was too far off (and 96 more since the last)`: {
			Type: Rejection, Rule: "shop", Scope: "netns:blue", Port: 8080, Client: at("[2001:db8::1]:5"), Reason: "pace", LetIn: true, LeftOut: 96},
		`shop:8080 192.0.2.7:4711 refused: it waited, and no slot came free in time`: {
			Type: HoldTimeout, Rule: "shop", Port: 8080, Client: at("192.0.2.7:4711"), Reason: "hold_timeout"},
		`shop:8080 limit 20 -> 40: gradient`: {
			Type: LimitChange, Rule: "shop", Port: 8080, From: ptr(20), To: ptr(40), Reason: "gradient"},
		`configuration: TROUBLE: line 3 ?[31m is wrong`:  {Type: Reload, OK: ptr(false), Message: "line 3 \x1b[31m is wrong\n"},
		`hold: arrivals are held again`:                  {Type: HookTrouble, OK: ptr(true), Hook: "hold", Message: "arrivals are held again"},
		`17 events were missed: this reader is too slow`: {Type: Missed, LeftOut: 17},
	} {
		if got := e.Text(); !strings.HasSuffix(got, " "+want) || len(got) != len("15:04:05.000 ")+len(want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What is wrong with a configuration may be a page: the line for people is cut
// off, and says where the rest is; pipelines get it whole.
func TestLongMessages(t *testing.T) {
	const hint = " ... (all of it: -o json)"
	long := strings.Repeat("ü", longest)
	for message, want := range map[string]string{
		long:                        long,
		long + "x":                  long + hint,
		"x.yaml:1:1: a\n\n 1 | a\n": "x.yaml:1:1: a" + hint,
		"\n":                        "",
	} {
		e := Event{Type: Reload, OK: ptr(false), Message: message}
		if got := e.Text(); !strings.HasSuffix(got, " configuration: TROUBLE: "+want) {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
		var whole Event
		b, err := json.Marshal(e)
		if err := errors.Join(err, json.Unmarshal(b, &whole)); err != nil || whole.Message != message {
			t.Errorf("%q: %s, %v", message, b, err)
		}
	}
}

// Pipelines read this.
func TestJSON(t *testing.T) {
	e := Event{Number: 7, Time: clock(), Type: Rejection, Rule: "shop", Scope: "host", Port: 8080, Unit: "connection",
		Client: at("192.0.2.7:4711"), Reason: "limit", LeftOut: 3}
	got, err := json.Marshal(e)
	want := `{"number":7,"time":"1970-01-12T13:46:40Z","type":"rejection","rule":"shop","scope":"host","port":8080,` +
		`"unit":"connection","client":"192.0.2.7:4711","reason":"limit","left_out":3}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	var again Event
	if err := json.Unmarshal(got, &again); err != nil || *again.Client != *e.Client {
		t.Errorf("%+v, %v", again, err)
	}
}
