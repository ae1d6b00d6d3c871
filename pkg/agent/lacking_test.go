package agent

import (
	"strings"
	"testing"

	"headgate/pkg/config"
	"headgate/pkg/loader"
)

func TestLacking(t *testing.T) {
	everything := []loader.Capability{
		loader.CanRelease, loader.CanService, loader.CanAdopt, loader.CanSweep, loader.CanHold, loader.CanTCX, loader.CanRecount,
	}
	for _, test := range []struct {
		name  string
		set   func(*config.Rule)
		needs []loader.Capability
	}{
		{"the default", func(*config.Rule) {}, []loader.Capability{loader.CanService}},
		{"a fixed limit", func(r *config.Rule) { r.Limit.Algorithm = "fixed" }, nil},
		{"the round trip", func(r *config.Rule) { r.Signal = config.SignalRTT }, nil},
		{"request", func(r *config.Rule) { r.Unit, r.Limit.Algorithm = config.UnitRequest, "fixed" }, []loader.Capability{loader.CanService, loader.CanHold}},
		{"drop", func(r *config.Rule) { r.Reject, r.Limit.Algorithm = config.RejectDrop, "fixed" }, []loader.Capability{loader.CanHold}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := config.DefaultRule()
			r.Name = "shop"
			test.set(&r)
			for _, without := range everything {
				able := make(map[loader.Capability]bool)
				needed := false
				for _, c := range everything {
					able[c] = c != without
				}
				for _, c := range test.needs {
					needed = needed || c == without
				}
				err := Lacking(&r, able)
				if (err != nil) != needed {
					t.Errorf("without %s: %v; is it needed: %t", without, err, needed)
				}
				if err != nil && (!strings.Contains(err.Error(), "rule shop") || !strings.Contains(err.Error(), string(without))) {
					t.Errorf("without %s: %v; want the rule and the capability", without, err)
				}
				if without.Otherwise() == "" {
					t.Errorf("%s: what is done otherwise is not said", without)
				}
			}
		})
	}
}
