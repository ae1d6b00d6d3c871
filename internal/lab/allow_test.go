package lab

import (
	"testing"
	"time"
)

func TestAllow(t *testing.T) {
	for text, want := range map[string]time.Duration{"": time.Second, "1": time.Second, "2.5": 2500 * time.Millisecond} {
		t.Setenv(Slowness, text)
		if got := Allow(time.Second); got != want {
			t.Errorf("%s=%q: %v, want %v", Slowness, text, got, want)
		}
	}
	for _, text := range []string{"0", "fast", "-1"} {
		t.Setenv(Slowness, text)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s=%q was taken", Slowness, text)
				}
			}()
			Allow(time.Second)
		}()
	}
}
