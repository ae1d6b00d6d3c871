package main

import (
	"fmt"
	"strings"

	"headgate/pkg/metrics"
)

const metricsIntro = `# Metrics

<!-- Written by go run ./internal/docgen. Do not edit. -->

The agent serves these at ` + "`/metrics`" + ` of its address (key ` + "`listen`" + `), as OpenMetrics or in Prometheus'
text form, with what Prometheus' library tells of any Go process (` + "`go_*`, `process_*`" + `).

A target's metrics have the labels rule, scope, port and unit. No label holds the address of a
client. Counters count from when the target was first protected, and go on when a new agent takes over.

A histogram has classic buckets and, for a server that asks for them, native ones of eight to a power
of two. A latency is counted at the upper end of one of the kernel's buckets: up to 3.1 % more than it was.

`

// metricsPage returns the reference of the metrics.
func metricsPage() string {
	var b strings.Builder
	b.WriteString(metricsIntro)
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, f := range metrics.Reference() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, f.Type, strings.Join(f.Labels, ", "), f.Help)
	}
	return b.String()
}
