package mixin

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"headgate/internal/lab"
	"headgate/pkg/metrics"
)

func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv(lab.RequireRoot) == "1" {
			t.Fatal("no promtool; .ci/deps installs it")
		}
		t.Skip("no promtool")
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestRules(t *testing.T) {
	promtool(t, "check", "rules", "--lint-fatal", "rules.yaml", "alerts.yaml")
	promtool(t, "test", "rules", "rules_test.yaml")
}

// ruleFile is what these tests read of a file of rules.
type ruleFile struct {
	Groups []struct {
		Rules []struct {
			Record, Alert, Expr string
			Labels              struct{ Severity string }
			Annotations         map[string]string
		}
	}
}

func readRules(t *testing.T, file string) (f ruleFile) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// Each alert says what to do in a section of its own, and its tests have it
// fire, and not fire where all is well and before its time.
func TestAlertsAreDocumentedAndTested(t *testing.T) {
	doc, err := os.ReadFile("../docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	var tests struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	text, err := os.ReadFile("rules_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &tests); err != nil {
		t.Fatal(err)
	}
	fires, silent := map[string]int{}, map[string]int{}
	for _, test := range tests.Tests {
		for _, a := range test.AlertRuleTest {
			if len(a.ExpAlerts) > 0 {
				fires[a.Alertname]++
			} else {
				silent[a.Alertname]++
			}
		}
	}
	n := 0
	for _, g := range readRules(t, "alerts.yaml").Groups {
		for _, r := range g.Rules {
			n++
			if !strings.Contains(string(doc), "\n## "+r.Alert+"\n") {
				t.Errorf("docs/alerts.md has no section %s", r.Alert)
			}
			if want := "docs/alerts.md#" + strings.ToLower(r.Alert); r.Annotations["runbook"] != want {
				t.Errorf("%s: the runbook is %q, want %q", r.Alert, r.Annotations["runbook"], want)
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s says nothing", r.Alert)
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels.Severity) {
				t.Errorf("%s: severity %q", r.Alert, r.Labels.Severity)
			}
			if fires[r.Alert] == 0 || silent[r.Alert] < 2 {
				t.Errorf("%s: tested to fire %d times, and not to %d times", r.Alert, fires[r.Alert], silent[r.Alert])
			}
		}
	}
	if n == 0 || n != strings.Count(string(doc), "\n## Headgate") {
		t.Errorf("%d alerts, and %d sections", n, strings.Count(string(doc), "\n## Headgate"))
	}
}

// Whatever rules and dashboard ask for is there: a metric of the agent, or a
// recorded rule.
func TestMetricsExist(t *testing.T) {
	known := map[string]bool{}
	for _, f := range metrics.Reference() {
		known[f.Name] = true
		if f.Type == "histogram" {
			known[f.Name+"_bucket"], known[f.Name+"_sum"], known[f.Name+"_count"] = true, true, true
		}
	}
	rules := readRules(t, "rules.yaml")
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			known[r.Record] = true
		}
	}
	names := regexp.MustCompile(`[a-z:]*headgate_[a-z0-9_:]+`)
	check := func(where, expr string) {
		for _, name := range names.FindAllString(expr, -1) {
			if !known[name] {
				t.Errorf("%s: there is no metric %s", where, name)
			}
		}
	}
	for _, f := range []ruleFile{rules, readRules(t, "alerts.yaml")} {
		for _, g := range f.Groups {
			for _, r := range g.Rules {
				check(r.Record+r.Alert, r.Expr)
			}
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	text, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			check("panel "+p.Title, q.Expr)
		}
	}
}

// No panel reaches over the edge, or lies on another.
func TestPanelsFit(t *testing.T) {
	text, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	taken, ids := map[[2]int]string{}, map[int]string{}
	for _, p := range d.Panels {
		if other, ok := ids[p.ID]; ok || p.ID == 0 {
			t.Errorf("%s has the number %d, as %q has", p.Title, p.ID, other)
		}
		ids[p.ID] = p.Title
		g := p.GridPos
		if g.W == 0 || g.H == 0 || g.X+g.W > 24 {
			t.Errorf("%s: %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					t.Fatalf("%s lies on %s", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}
