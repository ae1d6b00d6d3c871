package api

import (
	"errors"
	"strings"
	"testing"
)

func TestExplain(t *testing.T) {
	addr := serve(t, fakeAgent{}, "")
	for path, want := range map[string]string{
		"host/8080":                     `"headline": "Port 8080 (rule shop, host): 57 connections may be in flight, none is."`,
		"netns:%2Frun%2Fblue%20net/443": `"port": 443,`,
	} {
		resp, body := do(t, "GET", "http://"+addr+"/api/v1/targets/"+path+"/explain")
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/json" || !strings.Contains(body, want) {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	for path, want := range map[string]int{"host/80": 404, "x/8080": 404, "host/x": 400, "host/65536": 400, "host/-1": 400} {
		if resp, body := do(t, "GET", "http://"+addr+"/api/v1/targets/"+path+"/explain"); resp.StatusCode != want {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
}

func TestFetchExplanation(t *testing.T) {
	addr := serve(t, fakeAgent{}, "")
	for _, scope := range []string{"", "netns:/run/blue net"} {
		if e, err := FetchExplanation(t.Context(), addr, scope, 443); err != nil || e.Target.Rule != "blue" {
			t.Errorf("scope %q: %+v, %v", scope, e, err)
		}
	}
	if e, err := FetchExplanation(t.Context(), addr, "host", 8080); err != nil || e.Target.Limit != 57 {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := FetchExplanation(t.Context(), addr, "", 8080); err == nil || !strings.Contains(err.Error(), "--scope names one: host, netns:/run/blue net") {
		t.Error(err)
	}
	for _, scope := range []string{"", "host"} {
		if _, err := FetchExplanation(t.Context(), addr, scope, 99); !errors.Is(err, ErrNoTarget) {
			t.Errorf("scope %q: %v", scope, err)
		}
	}
}
