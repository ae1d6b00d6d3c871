package e2e

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/internal/browser"
	"headgate/pkg/status"
)

// With a directory for pictures there is load for as long as the page looks back.
var (
	pictures      = flag.String("pictures", "", "`directory` to write pictures of the live page and of the dashboard to")
	picturesAfter = flag.Duration("pictures-after", 10*time.Minute, "`time` of load before that")
)

// The live page shows what the API says, under load, as it changes.
func TestPageUnderLoad(t *testing.T) {
	during := 20 * time.Second
	if *pictures != "" {
		during = *picturesAfter + 30*time.Second
	}
	w := watch(t, during)
	var p *prometheus
	if *pictures != "" {
		p = startPrometheus(t, w.addr)
	}
	recorded := newRecorder(t, w.addr)
	tab := browser.New(t)
	tab.Show(browser.Screen{Width: 1280, Height: 800})
	tab.Open(recorded.url)
	tab.Await("document.documentElement.dataset.second > 2")

	tab.Await(`document.querySelector('[data-is=changes] td:nth-child(3)').innerText.length > 4`)
	last, seen := "", 0
	for deadline := time.Now().Add(patience + 10*time.Second); seen < 6; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the page has changed %d times only", seen)
		}
		second, shown := readPage(t, tab)
		said, rates := recorded.at(second)
		if second == last || said == nil {
			continue // not drawn anew, or between the two
		}
		last = second
		seen++
		for i, want := range said.Targets {
			compare(t, shown[i], want, rates[i])
		}
	}
	for _, u := range tab.Requests() {
		if !strings.HasPrefix(u, recorded.url) {
			t.Errorf("the page asks for %s", u)
		}
	}
	for _, trouble := range tab.Trouble() {
		t.Error(trouble)
	}
	if p == nil {
		return
	}
	time.Sleep(*picturesAfter)
	draw := exec.CommandContext(t.Context(), "go", "run", "./tools/panels", "-prometheus", p.url,
		"-last", picturesAfter.String(), "-o", filepath.Join(*pictures, "dashboard.png"))
	draw.Dir = root(t)
	if out, err := draw.CombinedOutput(); err != nil {
		t.Errorf("draw the panels: %v\n%s", err, out)
	}
	var ok bool
	tab.Eval("document.querySelectorAll('.target:nth-child(n+3)').forEach((d) => { d.open = false }), true", &ok)
	for name, screen := range map[string]browser.Screen{
		"page":       {Width: 1280, Height: 800},
		"page-dark":  {Width: 1280, Height: 800, Dark: true},
		"phone":      {Width: 390, Height: 844, Touch: true},
		"phone-dark": {Width: 390, Height: 844, Touch: true, Dark: true},
	} {
		tab.Show(screen)
		tab.Eval("new Promise((r) => setTimeout(r, 1500)).then(() => true)", &ok)
		tab.Picture(filepath.Join(*pictures, name+".png"))
	}
}

// card is what the page shows of a target.
type card struct {
	Text map[string]string
	Bar  string
}

// readPage reads the page at one moment.
func readPage(t *testing.T, tab *browser.Tab) (second string, cards []card) {
	t.Helper()
	var read struct {
		Second string
		Cards  []card
	}
	tab.Eval(`({
		Second: document.documentElement.dataset.second,
		Cards: [...document.querySelectorAll('.target')].map((e) => ({
			Text: Object.fromEntries([...e.querySelectorAll('[data-is]')].map((p) => [p.dataset.is, p.innerText])),
			Bar: e.querySelector('.bar i').style.width,
		})),
	})`, &read)
	return read.Second, read.Cards
}

// lastRates are what the history says of the last second.
type lastRates struct{ admitted, rejected, wouldReject float64 }

// compare checks what is shown of a target against what the API said.
func compare(t *testing.T, got card, want status.Target, rates lastRates) {
	t.Helper()
	number := func(part string, want float64) {
		t.Helper()
		if n, err := parse(got.Text[part]); err != nil || math.Abs(n-want) > 0.006*math.Abs(want) {
			t.Errorf("%s: the page shows %s %q, the API says %v (%v)", got.Text["rule"], part, got.Text[part], want, err)
		}
	}
	if got.Text["rule"] != want.Rule || !strings.HasPrefix(got.Text["place"], fmt.Sprintf("port %d, %s", want.Port, want.Scope)) {
		t.Fatalf("%v, want %s %d %s", got.Text, want.Rule, want.Port, want.Scope)
	}
	number("limit", float64(want.Limit))
	number("in_flight", float64(want.InFlight))
	number("waiting", float64(want.Waiting))
	number("baseline", want.BaselineSeconds)
	number("admitted_rate", rates.admitted)
	number("admitted_total", float64(want.AdmittedTotal))
	if want.Window.Samples > 0 {
		number("latency", want.Window.MeanSeconds)
	} else if got.Text["latency"] != "–" {
		t.Errorf("the latency of no sample is %s", got.Text["latency"])
	}
	r := want.RejectedTotal
	if want.Mode == "observe" {
		number("rejected_rate", rates.wouldReject)
		number("rejected_total", float64(want.WouldRejectTotal))
	} else {
		number("rejected_rate", rates.rejected)
		number("rejected_total", float64(r.Limit+r.Pace+r.Source+r.HoldTimeout))
	}
	for _, reason := range []uint64{r.Limit, r.Pace, r.Source, r.HoldTimeout} {
		if text := grouped(reason); !strings.Contains(got.Text["reasons"], "\t"+text) {
			t.Errorf("%s: %q does not have %s", want.Rule, got.Text["reasons"], text)
		}
	}
}

// grouped writes a number as 1,234,567.
func grouped(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// parse reads a number with a unit as a person would; what is not known is 0.
func parse(text string) (float64, error) {
	text = strings.ReplaceAll(text, ",", "")
	factor := 1.0
	for suffix, f := range map[string]float64{" ms": 1e-3, " µs": 1e-6, " s": 1, "/s": 1} {
		if rest, ok := strings.CutSuffix(text, suffix); ok && !strings.HasSuffix(rest, "m") {
			text, factor = rest, f
		}
	}
	if text == "–" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	return n * factor, err
}

// recorder stands between the page and the API, and keeps what was said last.
type recorder struct {
	url string

	mu       sync.Mutex
	status   *status.Status
	rates    []lastRates
	second   string // of the rates
	again    bool   // those before were of the same second
	statuses int    // how often each was said
	rateses  int
}

func newRecorder(t *testing.T, addr string) *recorder {
	t.Helper()
	r := &recorder{}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: addr})
	proxy.ModifyResponse = func(resp *http.Response) error {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		resp.Body = io.NopCloser(bytes.NewReader(body))
		return r.keep(resp.Request.URL, body)
	}
	s := httptest.NewServer(proxy)
	t.Cleanup(s.Close)
	r.url = s.URL + "/"
	return r
}

func (r *recorder) keep(u *url.URL, body []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch u.Path {
	case "/api/v1/status":
		s := new(status.Status)
		if err := json.Unmarshal(body, s); err != nil {
			return err
		}
		r.status = s
		r.statuses++
	case "/api/v1/history":
		var h struct {
			Second  int
			Targets []struct {
				Admitted    []*float64            `json:"admitted_per_second"`
				Rejected    map[string][]*float64 `json:"rejected_per_second"`
				WouldReject []*float64            `json:"would_reject_per_second"`
			}
		}
		if err := json.Unmarshal(body, &h); err != nil {
			return err
		}
		last := func(v []*float64) float64 {
			if n := len(v); n > 0 && v[n-1] != nil {
				return *v[n-1]
			}
			return 0
		}
		if u.Query().Has("target") {
			return nil
		}
		var rates []lastRates
		for _, t := range h.Targets {
			l := lastRates{admitted: last(t.Admitted), wouldReject: last(t.WouldReject)}
			for _, v := range t.Rejected {
				l.rejected += last(v)
			}
			rates = append(rates, l)
		}
		second := strconv.Itoa(h.Second)
		r.rates, r.again, r.second = rates, second == r.second, second
		r.rateses++
	}
	return nil
}

// at returns what was said last, if it is what a page shows that was drawn for
// this second; nil when part of it is newer.
func (r *recorder) at(second string) (*status.Status, []lastRates) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if second != r.second || r.again || r.statuses != r.rateses {
		return nil, nil
	}
	return r.status, r.rates
}
