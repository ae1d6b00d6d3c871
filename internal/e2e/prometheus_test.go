package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/api"
)

// A real Prometheus scrapes a real agent under load: every query of the
// dashboard and every recorded rule has data, and nothing that is well alarms.
func TestPrometheus(t *testing.T) {
	w := watch(t, 12*time.Second)
	p := startPrometheus(t, w.addr)
	for _, panel := range dashboardPanels(t) {
		for _, q := range panel.Targets {
			expr := strings.NewReplacer("$__rate_interval", "10s", `"$job"`, `".*"`, `"$instance"`, `".*"`,
				`"$rule"`, `".*"`, `"$port"`, `".*"`).Replace(q.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("%s: a variable is left: %s", panel.Title, expr)
			}
			p.await(t, panel.Title, expr)
		}
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Query, Type, Health, LastError, State string }
		}
	}
	p.get(t, "rules", nil, &rules)
	recorded := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Health != "ok" {
				t.Errorf("rule %s: %s %s", r.Name, r.Health, r.LastError)
			}
			if r.Type == "recording" {
				recorded++
				p.await(t, r.Name, r.Name)
			}
			// Pending are those only that an overload is about.
			overload := strings.HasPrefix(r.Name, "HeadgateRefusing") || r.Name == "HeadgateAtFloorAndCongested"
			if r.Type == "alerting" && r.State != "inactive" && !overload {
				t.Errorf("alert %s is %s", r.Name, r.State)
			}
		}
	}
	if recorded == 0 {
		t.Error("no rule was recorded")
	}

	lintScrape(t, w.addr)

	// When nothing changes any more, Prometheus has the numbers of the API.
	w.quiet()
	await(t, "Prometheus says what the API says", func() (any, bool) {
		st, err := api.FetchStatus(t.Context(), w.addr)
		if err != nil {
			t.Fatal(err)
		}
		var differ []string
		for _, target := range st.Targets {
			for name, want := range map[string]float64{
				"headgate_admitted_total":                        float64(target.AdmittedTotal),
				"headgate_finished_total":                        float64(target.FinishedTotal),
				"headgate_in_flight":                             float64(target.InFlight),
				`sum without (reason) (headgate_rejected_total)`: float64(rejectedInAll(target)),
				"headgate_held_total":                            float64(target.HeldTotal),
				"headgate_would_reject_total":                    float64(target.WouldRejectTotal),
			} {
				got := p.query(t, name)
				if v, ok := got[fmt.Sprint(target.Port)]; !ok || v != want {
					differ = append(differ, fmt.Sprintf("%s of %s: %v, want %v", name, target.Rule, v, want))
				}
			}
		}
		return differ, len(differ) == 0
	})
}

// lintScrape has Prometheus' own tool look at what the agent serves.
func lintScrape(t *testing.T, agent string) {
	t.Helper()
	resp, err := http.Get("http://" + agent + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	cmd := exec.CommandContext(t.Context(), "promtool", "check", "metrics", "--extended")
	cmd.Stdin = resp.Body
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
	http.DefaultClient.CloseIdleConnections()
}

type dashboardPanel struct {
	Title   string
	Targets []struct{ Expr string }
}

func dashboardPanels(t *testing.T) []dashboardPanel {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "mixin", "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d struct{ Panels []dashboardPanel }
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, p := range d.Panels {
		n += len(p.Targets)
	}
	if n < 20 {
		t.Fatalf("the dashboard has %d queries", n)
	}
	return d.Panels
}

// root is the directory of the repository.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// prometheus is a server that scrapes one agent.
type prometheus struct{ url string }

// startPrometheus starts one, with the rules of the mixin. It ends with the test.
func startPrometheus(t *testing.T, agent string) *prometheus {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		if os.Getenv(lab.RequireRoot) == "1" {
			t.Fatal("no prometheus; .ci/deps installs it")
		}
		t.Skip("no prometheus")
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yaml")
	text := fmt.Sprintf(`global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [%[1]q, %[2]q]
scrape_configs: [{job_name: headgate, static_configs: [{targets: [%[3]q]}]}]
`, filepath.Join(root(t), "mixin", "rules.yaml"), filepath.Join(root(t), "mixin", "alerts.yaml"), agent)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("prometheus: %v", err)
		}
	})
	p := &prometheus{url: "http://" + address}
	awaitFor(t, 4*patience, "Prometheus is up", func() (any, bool) {
		err := p.ask(t.Context(), "query", url.Values{"query": {"1"}}, new(json.RawMessage))
		return err, err == nil
	})
	return p
}

// ask asks Prometheus' API.
func (p *prometheus) ask(ctx context.Context, what string, args url.Values, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/v1/"+what+"?"+args.Encode(), nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var answer struct {
		Status, Error string
		Data          any
	}
	answer.Data = data
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("%s: %w", resp.Status, err)
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return nil
}

func (p *prometheus) get(t *testing.T, what string, args url.Values, data any) {
	t.Helper()
	if err := p.ask(t.Context(), what, args, data); err != nil {
		t.Fatalf("%s %v: %v", what, args, err)
	}
}

// query returns the values of an expression that are numbers, by port.
func (p *prometheus) query(t *testing.T, expr string) map[string]float64 {
	t.Helper()
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	p.get(t, "query", url.Values{"query": {expr}}, &data)
	values := map[string]float64{}
	for _, r := range data.Result {
		text, _ := r.Value[1].(string)
		if v, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(v) && !math.IsInf(v, 0) {
			values[r.Metric["port"]] = v
		}
	}
	return values
}

// await waits until an expression has data.
func (p *prometheus) await(t *testing.T, what, expr string) {
	t.Helper()
	awaitFor(t, 2*patience, what+": "+expr+" has data", func() (any, bool) {
		got := p.query(t, expr)
		return got, len(got) > 0
	})
}
