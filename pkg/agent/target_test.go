package agent

import (
	"log/slog"
	"runtime"
	"testing"
	"time"

	"headgate/pkg/config"
	"headgate/pkg/events"
	"headgate/pkg/loader"
)

// Hosts with a thousand targets have most of them do nothing: each is to take a
// few kilobytes, and nothing more in any window.
func TestIdleTargetIsLean(t *testing.T) {
	rule := config.DefaultRule()
	rule.Name = "shop"
	rule.Limit.Algorithm = "guarded"
	log := slog.New(slog.DiscardHandler)
	targets := make([]*target, 100)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range targets {
		var err error
		if targets[i], err = newTarget(config.Target{Rule: &rule, Port: uint16(i)}, loader.TargetKey{Port: uint16(i)}); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / uint64(len(targets)); n > 4096 {
		t.Errorf("%d bytes for a target", n)
	}
	now := time.Second
	for _, tgt := range targets {
		tgt.begin(now)
	}
	a := &Agent{events: events.NewBus(8, time.Now)}
	var r loader.Reading
	if n := testing.AllocsPerRun(100, func() {
		now += 100 * time.Millisecond
		for _, tgt := range targets {
			tgt.step(now, &r, nil, log)
			tgt.countRefusals()
			a.tellLimit(tgt, now)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a window", n)
	}
}
