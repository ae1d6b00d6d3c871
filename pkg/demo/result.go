package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"headgate/internal/lab/load"
)

// Result is what came out.
type Result struct {
	Server            string  `json:"server"`
	CapacityPerSecond float64 `json:"capacity_per_second"` // what the server can carry
	WithinSeconds     float64 `json:"within_seconds"`      // an answer as fast as this is a good one

	// What the clients got who came after the settling at the begin of each
	// phase, and so long before its end that they knew their outcome by then.
	Observe load.Summary `json:"observe"`
	Enforce load.Summary `json:"enforce"`

	Timeline []Sample `json:"timeline"`
}

func newResult(o Options, recorder *load.Recorder, samples []Sample) *Result {
	measure := func(begin time.Duration) load.Summary {
		return recorder.Summarize(begin+o.Settle, begin+o.Phase-patience, within)
	}
	return &Result{
		Server:            o.Server,
		CapacityPerSecond: capacity,
		WithinSeconds:     within.Seconds(),
		Observe:           measure(o.WarmUp),
		Enforce:           measure(o.WarmUp + o.Phase),
		Timeline:          samples,
	}
}

// WriteJSON writes the result as one JSON object.
func (r *Result) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteText writes the result as a table and, when w is a terminal, a picture
// of limit and in flight over time.
func (r *Result) WriteText(w io.Writer) error {
	var text strings.Builder
	if width, ok := terminalWidth(w); ok {
		text.WriteString(picture(r.Timeline, width))
	}
	r.table(&text)
	_, err := io.WriteString(w, text.String())
	return err
}

func (r *Result) table(w io.Writer) {
	fmt.Fprintf(w, "\n%s: carries %.0f requests/s; measured over %.0f s at %.1f times that\n\n",
		serverName(r.Server), r.CapacityPerSecond, r.Observe.Seconds, r.Observe.Offered()/r.CapacityPerSecond)
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(name string, value func(load.Summary) string) {
		fmt.Fprintf(tw, "%s\t%s\t%s\t\n", name, value(r.Observe), value(r.Enforce))
	}
	perSecond := func(n func(load.Summary) uint64) func(load.Summary) string {
		return func(s load.Summary) string { return fmt.Sprintf("%.0f", float64(n(s))/s.Seconds) }
	}
	fmt.Fprintf(tw, "requests a second\tobserving\tenforcing\t\n")
	row("offered", perSecond(func(s load.Summary) uint64 { return s.Arrived }))
	row(fmt.Sprintf("goodput (answered within %.0f ms)", r.WithinSeconds*1000),
		perSecond(func(s load.Summary) uint64 { return s.Good }))
	row("as a part of what the server carries", func(s load.Summary) string {
		return fmt.Sprintf("%.0f %%", 100*s.Goodput()/r.CapacityPerSecond)
	})
	row("answered later", perSecond(func(s load.Summary) uint64 { return s.Answered - s.Good }))
	row("refused at once", perSecond(func(s load.Summary) uint64 { return s.Refused }))
	row(fmt.Sprintf("given up after %v", patience), perSecond(func(s load.Summary) uint64 { return s.TimedOut }))
	row("reset or failed", perSecond(func(s load.Summary) uint64 { return s.Reset + s.Failed }))
	row("time to answer, p50", func(s load.Summary) string { return latency(s, s.P50Seconds) })
	row("p99", func(s load.Summary) string { return latency(s, s.P99Seconds) })
	_ = tw.Flush() // w is memory
	fmt.Fprint(w, "\nAbove, (n) is what would have been refused while observing. A client that gets\n"+
		"no answer from a full server sends its SYN again, and each is refused.\n")
	if unsent := r.Observe.Unsent + r.Enforce.Unsent; unsent > 0 {
		fmt.Fprintf(w, "\nthis machine could not send %d of the requests: the figures are not to be trusted\n", unsent)
	}
}

func serverName(server string) string {
	if server == "nginx" {
		return "nginx in front of a slow HTTP server"
	}
	return "a slow HTTP server"
}

func latency(s load.Summary, seconds float64) string {
	if s.Answered == 0 {
		return "-"
	}
	return milliseconds(seconds)
}

func milliseconds(seconds float64) string {
	return fmt.Sprintf("%.0f ms", seconds*1000)
}
