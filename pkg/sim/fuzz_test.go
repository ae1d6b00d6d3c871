package sim

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// Whatever a file says, reading it either fails with its place or leads to a
// scenario that can be run, with limits that are never negative.
func FuzzReadFile(f *testing.F) {
	for _, seed := range []string{
		"load: {rate: 5}\n",
		"server: {workers: 1, service: 1ms}\nlimit: {algorithm: aimd, initial: 5, min: 1, max: 9}\n",
		"load: {rate: .nan}\n",
		"load: {capacity: -1e308}\n",
		"server: {workers: 999999999999}\n",
		"duration: 1ns\n",
		"limit: {max: 0}\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var file File
		if err := file.ReadFile("x.yaml", strings.NewReader(text)); err != nil {
			if !strings.HasPrefix(err.Error(), "x.yaml") {
				t.Fatalf("an error without its place: %v", err)
			}
			return
		}
		a, err := file.Limit.New(1)
		if err != nil || file.Scenario.Validate() != nil {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		begin := time.Now()
		r, err := Run(ctx, file.Scenario, a, nil)
		if took := time.Since(begin); took > 3*time.Second {
			t.Fatalf("it ended %v after it began, and was to end after 50 ms", took)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.Series {
			if p.Limit < 0 {
				t.Fatalf("a limit of %d", p.Limit)
			}
		}
	})
}
