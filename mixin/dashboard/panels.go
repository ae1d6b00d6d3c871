package main

// unit is one of Grafana's.
type unit string

const (
	units   unit = "short"
	perSec  unit = "ops"
	seconds unit = "s"
	share   unit = "percentunit"
)

// query is one line, or one for each of its labels.
type query struct {
	expr   string
	legend string
	dashed bool // what a line is compared with
}

// panel is a chart, or with big a number.
type panel struct {
	title, what string
	unit        unit
	queries     []query
	width       uint32 // of 24
	stacked     bool
	big         bool
	most        float64 // of a share: the end of the scale; 0 for none
}

// row is a part of the dashboard.
type row struct {
	title  string
	panels []panel
}

// of selects the targets that are chosen above.
const of = `{job=~"$job", instance=~"$instance", rule=~"$rule", port=~"$port"}`

// at selects the agents that are chosen above.
const at = `{job=~"$job", instance=~"$instance"}`

// target is how a target is written in a legend.
const target = "{{instance}} {{rule}}:{{port}}"

// rows are the dashboard: what is asked first comes first.
var rows = []row{
	{"Now", []panel{
		{title: "Agents", what: "Agents that answer.", unit: units, width: 4, big: true, queries: []query{
			{expr: `sum(up` + at + `)`, legend: "agents"}}},
		{title: "Targets that enforce", what: "The others only observe.", unit: units, width: 4, big: true, queries: []query{
			{expr: `sum(headgate_enforcing` + of + `)`, legend: "targets"}}},
		{title: "Admitted", what: "Units a second.", unit: perSec, width: 4, big: true, queries: []query{
			{expr: `sum(rate(headgate_admitted_total` + of + `[$__rate_interval]))`, legend: "admitted"}}},
		{title: "Refused", what: "Of all that came.", unit: share, width: 4, big: true, queries: []query{
			{expr: `sum(rate(headgate_rejected_total` + of + `[$__rate_interval])) / (sum(rate(headgate_admitted_total` + of + `[$__rate_interval])) + sum(rate(headgate_rejected_total` + of + `[$__rate_interval])))`, legend: "refused"}}},
		{title: "Oldest lease", what: "Since an agent last renewed its lease. At three seconds its gates open.", unit: seconds, width: 4, big: true, queries: []query{
			{expr: `max(headgate_lease_age_seconds` + at + `)`, legend: "lease"}}},
		{title: "Last reloads that failed", what: "Agents whose configuration is not that of their file.", unit: units, width: 4, big: true, queries: []query{
			{expr: `count(headgate_config_last_reload_successful` + at + `) - sum(headgate_config_last_reload_successful` + at + `)`, legend: "failed"}}},
	}},
	{"Limits", []panel{
		{title: "In flight and limit", what: "Units admitted and not finished, against the most that may be.", unit: units, width: 12, queries: []query{
			{expr: `headgate_in_flight` + of, legend: target + " in flight"},
			{expr: `headgate_limit` + of, legend: target + " limit", dashed: true}}},
		{title: "Use of the limit", what: "In flight over limit.", unit: share, width: 6, most: 1, queries: []query{
			{expr: `headgate_in_flight` + of + ` / headgate_limit` + of, legend: target}}},
		{title: "Gradient", what: "Baseline over latency: 1 is no queue, below 0.7 one stands.", unit: share, width: 6, most: 1, queries: []query{
			{expr: `headgate_gradient_ratio` + of, legend: target}}},
		{title: "Admitted and refused", what: "Units a second, refused ones by reason.", unit: perSec, width: 12, stacked: true, queries: []query{
			{expr: `rate(headgate_admitted_total` + of + `[$__rate_interval])`, legend: target + " admitted"},
			{expr: `rate(headgate_rejected_total` + of + `[$__rate_interval]) > 0`, legend: target + " refused: {{reason}}"}}},
		{title: "Would be refused", what: "By rules that only observe.", unit: perSec, width: 6, queries: []query{
			{expr: `rate(headgate_would_reject_total` + of + `[$__rate_interval])`, legend: target}}},
		{title: "Exempt", what: "Units a second that are never counted in flight.", unit: perSec, width: 6, queries: []query{
			{expr: `rate(headgate_exempted_total` + of + `[$__rate_interval])`, legend: target}}},
		{title: "Classes", what: "Units in flight of each class, against those that are guaranteed to it; others: of no class, and what is free to all.", unit: units, width: 12, queries: []query{
			{expr: `headgate_class_in_flight` + of, legend: target + " {{class}}"},
			{expr: `headgate_class_guaranteed` + of, legend: target + " {{class}} guaranteed", dashed: true}}},
		{title: "Refused of classes", what: "Units a second, on arrival.", unit: perSec, width: 6, queries: []query{
			{expr: `rate(headgate_class_rejected_total` + of + `[$__rate_interval])`, legend: target + " {{class}}"}}},
		{title: "Flood", what: "1 while SYNs come that nobody stands behind.", unit: units, width: 6, queries: []query{
			{expr: `headgate_flood_mode` + of, legend: target}}},
	}},
	{"Latency", []panel{
		{title: "Service time and baseline", what: "Mean time from request to response, against the time with no queue.", unit: seconds, width: 12, queries: []query{
			{expr: `rate(headgate_service_seconds_sum` + of + `[$__rate_interval]) / rate(headgate_service_seconds_count` + of + `[$__rate_interval])`, legend: target + " mean"},
			{expr: `headgate_baseline_seconds` + of, legend: target + " baseline", dashed: true}}},
		{title: "Service time, 99th percentile", what: "From the classic buckets, three to a power of ten.", unit: seconds, width: 6, queries: []query{
			{expr: `histogram_quantile(0.99, rate(headgate_service_seconds_bucket` + of + `[$__rate_interval]))`, legend: target}}},
		{title: "TCP round trip, median", what: "The network, not the service.", unit: seconds, width: 6, queries: []query{
			{expr: `histogram_quantile(0.5, rate(headgate_tcp_rtt_seconds_bucket` + of + `[$__rate_interval]))`, legend: target}}},
	}},
	{"Waiting", []panel{
		{title: "Waiting", what: "Units held now.", unit: units, width: 6, queries: []query{
			{expr: `headgate_waiting` + of, legend: target}}},
		{title: "Held and let in unheld", what: "Units a second that had to wait, and of these those that nobody was there to hold.", unit: perSec, width: 12, queries: []query{
			{expr: `rate(headgate_held_total` + of + `[$__rate_interval])`, legend: target + " held"},
			{expr: `rate(headgate_bypassed_total` + of + `[$__rate_interval])`, legend: target + " let in unheld"}}},
		{title: "Time waited, 99th percentile", what: "Of those that were let in.", unit: seconds, width: 6, queries: []query{
			{expr: `histogram_quantile(0.99, rate(headgate_hold_seconds_bucket` + of + `[$__rate_interval]))`, legend: target}}},
		{title: "Pace", what: "Units admitted a second at most.", unit: perSec, width: 6, queries: []query{
			{expr: `headgate_pace_per_second` + of, legend: target}}},
		{title: "Accept queue", what: "Connections that the application has not accepted, against its backlog.", unit: units, width: 12, queries: []query{
			{expr: `headgate_accept_queue_length` + of, legend: target},
			{expr: `headgate_accept_queue_max` + of, legend: target + " backlog", dashed: true}}},
		{title: "Lost by the accept queue", what: "Connections a second that the kernel dropped because it was full.", unit: perSec, width: 6, queries: []query{
			{expr: `rate(headgate_accept_queue_overflows_total` + of + `[$__rate_interval])`, legend: target}}},
	}},
	{"Agents", []panel{
		{title: "Age of the lease", what: "It is renewed each window.", unit: seconds, width: 8, queries: []query{
			{expr: `headgate_lease_age_seconds` + at, legend: "{{instance}}"}}},
		{title: "Programs attached", what: "By hook.", unit: units, width: 8, queries: []query{
			{expr: `headgate_programs_attached` + at, legend: "{{instance}} {{hook}}"}}},
		{title: "Hooks shadowed", what: "Programs of others that may decide before headgate's.", unit: units, width: 8, queries: []query{
			{expr: `headgate_hook_shadowed` + at, legend: "{{instance}} {{hook}}"}}},
		{title: "Maps full", what: "Entries a second that a map in the kernel had no room for.", unit: perSec, width: 8, queries: []query{
			{expr: `rate(headgate_map_full_total` + at + `[$__rate_interval])`, legend: "{{instance}} {{map}}"}}},
		{title: "Drift", what: "Units that a recount found too many, or with a minus too few.", unit: units, width: 8, queries: []query{
			{expr: `headgate_recount_drift` + of, legend: target}}},
		{title: "Events lost", what: "A second.", unit: perSec, width: 8, queries: []query{
			{expr: `rate(headgate_events_lost_total` + at + `[$__rate_interval])`, legend: "{{instance}} {{where}}"}}},
		{title: "CPU of the agent", what: "Cores. What the kernel's part takes is not in it.", unit: units, width: 8, queries: []query{
			{expr: `rate(process_cpu_seconds_total` + at + `[$__rate_interval])`, legend: "{{instance}}"}}},
		{title: "Windows", what: "What windows of measurements did to the limit; empty: there was no sample.", unit: perSec, width: 8, stacked: true, queries: []query{
			{expr: `sum by (outcome) (rate(headgate_windows_total` + of + `[$__rate_interval]))`, legend: "{{outcome}}"}}},
		{title: "Versions", what: "", unit: units, width: 8, queries: []query{
			{expr: `count by (version) (headgate_build_info` + at + `)`, legend: "{{version}}"}}},
	}},
}
