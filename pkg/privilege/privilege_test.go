package privilege

import (
	"slices"
	"testing"

	"kernel.org/pub/linux/libs/security/libcap/cap"

	"headgate/pkg/config"
)

// What Drop does is seen on a process of its own, in the tests of the whole chain.
func TestNeeded(t *testing.T) {
	three := []cap.Value{cap.BPF, cap.NET_ADMIN, cap.PERFMON}
	for _, tt := range []struct {
		rule config.Rule
		more []cap.Value
	}{
		{config.Rule{}, nil},
		{config.Rule{Hold: config.Hold{MaxWait: 1}}, []cap.Value{cap.NET_RAW}},
		{config.Rule{Unit: config.UnitRequest}, []cap.Value{cap.NET_RAW}},
		{config.Rule{Scope: config.Scope{Netns: "blue"}}, []cap.Value{cap.SYS_ADMIN}},
	} {
		cfg := config.Default()
		cfg.Rules = []config.Rule{{}, tt.rule}
		if got, want := Needed(cfg), append(slices.Clone(three), tt.more...); !slices.Equal(got, want) {
			t.Errorf("%+v: %v, want %v", tt.rule, got, want)
		}
	}
}
