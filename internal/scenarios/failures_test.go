package scenarios

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"headgate/pkg/controller"
)

// All of docs/design's failure scenarios, S10 (number 21) and S11 (number 22)
// of the field reports among them.
func TestGuardedPassesEveryFailureScenario(t *testing.T) {
	for _, f := range Failures() {
		o, err := f.Try(t.Context(), "guarded", controller.Params{})
		if err != nil {
			t.Fatalf("%d: %v", f.Number, err)
		}
		if !o.Pass || o.Moot {
			t.Errorf("%d, %s; wanted: %s; found: %s", f.Number, f.Words, f.Wanted, o.Figure)
		}
	}
}

// A scenario that nobody fails would prove nothing. 5, 6, 8 and 12 are passed or
// moot for every algorithm there is.
func TestFailureScenariosCanBeFailed(t *testing.T) {
	for number, c := range map[int]struct {
		algorithm string
		settings  controller.Params
	}{
		1:  {"gradient2", controller.Params{}},
		2:  {"gradient2", controller.Params{}},
		3:  {"gradient2", controller.Params{}},
		4:  {"fixed", controller.Params{Initial: new(15)}},
		7:  {"gradient", controller.Params{ProbeInterval: new(3)}},
		9:  {"gradient2", controller.Params{}},
		10: {"guarded", controller.Params{Burst: new(0.0)}},
		11: {"vegas", controller.Params{}},
		13: {"gradient2", controller.Params{}},
		14: {"gradient2", controller.Params{}},
		15: {"fixed", controller.Params{}},
		16: {"guarded", controller.Params{Burst: new(0.0)}},
		17: {"vegas", controller.Params{}},
		18: {"fixed", controller.Params{Min: new(0), Initial: new(0)}},
		19: {"fixed", controller.Params{Initial: new(4)}},
		20: {"fixed", controller.Params{Min: new(0), Initial: new(0)}},
		21: {"vegas", controller.Params{}},
		22: {"gradient2", controller.Params{}},
		23: {"gradient", controller.Params{}},
		24: {"blog", controller.Params{WarmUp: new(time.Duration(0))}},
	} {
		f := Failures()[number-1]
		o, err := f.Try(t.Context(), c.algorithm, c.settings)
		if err != nil {
			t.Errorf("%d: %v", number, err)
		} else if o.Pass {
			t.Errorf("%d: %s passes: %s", number, c.algorithm, o.Figure)
		}
	}
}

// The document says of every mode what it passes. Figures may differ in their
// last digits from machine to machine and are not compared.
func TestTableIsCurrent(t *testing.T) {
	const path = "../../docs/algorithms-scenarios.md"
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var now bytes.Buffer
	if err := WriteTable(t.Context(), &now); err != nil {
		t.Fatal(err)
	}
	verdicts := func(text string) string {
		table, _, _ := strings.Cut(text, "## What was measured")
		return table
	}
	if got, want := verdicts(string(doc)), verdicts(now.String()); got != want {
		t.Errorf("%s is out of date; run: go run ./internal/scenarios/score -failures > docs/algorithms-scenarios.md\nnow:\n%s", path, want)
	}
}
