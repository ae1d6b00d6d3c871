package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"headgate/pkg/status"
)

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// families are the metrics of headgate, in the order of the documentation.
var families = []family{
	{
		name: "headgate_limit", kind: gauge,
		help:     "The most units that may be in flight, as enforced now.",
		ofTarget: plain(func(t *status.Target) float64 { return float64(t.Limit) }),
	},
	{
		name: "headgate_at_floor", kind: gauge,
		help:     "1 while the limit is the least that its algorithm may set (the key min): where a queue stands all the same, it cannot help.",
		ofTarget: plain(func(t *status.Target) float64 { return truth(t.AtFloor) }),
	},
	{
		name: "headgate_in_flight", kind: gauge,
		help:     "Units admitted and not finished.",
		ofTarget: plain(func(t *status.Target) float64 { return float64(t.InFlight) }),
	},
	{
		name: "headgate_pending", kind: gauge,
		help:     "Units in flight whose connection is not established yet.",
		ofTarget: plain(func(t *status.Target) float64 { return float64(t.Pending) }),
	},
	{
		name: "headgate_waiting", kind: gauge,
		help:     "Units held now, until a slot is free or their turn in the pace comes.",
		ofTarget: plain(func(t *status.Target) float64 { return float64(t.Waiting) }),
	},
	{
		name: "headgate_connections", kind: gauge,
		help: "Open connections of a target whose unit is the request.",
		ofTarget: func(t *status.Target, _ *Detail, emit func(float64, string)) {
			if t.Unit == "request" {
				emit(float64(t.Connections), "")
			}
		},
	},
	{
		name: "headgate_admitted_total", kind: counter,
		help:     "Units admitted.",
		ofTarget: plain(func(t *status.Target) float64 { return float64(t.AdmittedTotal) }),
	},
	{
		name: "headgate_finished_total", kind: counter,
		help:     "Units admitted and finished.",
		ofTarget: plain(func(t *status.Target) float64 { return float64(t.FinishedTotal) }),
	},
	{
		name: "headgate_rejected_total", kind: counter, label: "reason",
		help: "Units rejected. The reason limit: as many were in flight, or waited, as may; pace: its turn was too far off; source: as many of its source were there as may be; flood: a stranger beside a SYN flood, where the kernel makes no SYN cookies; hold_timeout: it waited, and no slot came free in time.",
		ofTarget: func(t *status.Target, _ *Detail, emit func(float64, string)) {
			emit(float64(t.RejectedTotal.Limit), "limit")
			emit(float64(t.RejectedTotal.Pace), "pace")
			emit(float64(t.RejectedTotal.Source), "source")
			emit(float64(t.RejectedTotal.Flood), "flood")
			emit(float64(t.RejectedTotal.HoldTimeout), "hold_timeout")
		},
	},
	{
		name: "headgate_held_total", kind: counter,
		help:     "Units that had to wait, whatever became of them.",
		ofTarget: plain(func(t *status.Target) float64 { return float64(t.HeldTotal) }),
	},
	{
		name: "headgate_bypassed_total", kind: counter,
		help:     "Units that had to wait and were let in because no agent was there to hold them.",
		ofTarget: plain(func(t *status.Target) float64 { return float64(t.BypassedTotal) }),
	},
	{
		name: "headgate_exempted_total", kind: counter,
		help:     "Connections that were let in uncounted because their source is exempt.",
		ofTarget: plain(func(t *status.Target) float64 { return float64(t.ExemptedTotal) }),
	},
	{
		name: "headgate_class_in_flight", kind: gauge, label: "class",
		help:     "Units in flight of a class; others: of none.",
		ofTarget: ofClasses(func(c *status.Class) float64 { return float64(c.InFlight) }),
	},
	{
		name: "headgate_class_guaranteed", kind: gauge, label: "class",
		help:     "Units of the limit that are guaranteed to a class; others: those that are free to all.",
		ofTarget: ofClasses(func(c *status.Class) float64 { return float64(c.Limit) }),
	},
	{
		name: "headgate_class_rejected_total", kind: counter, label: "class",
		help:     "Units of a class that were rejected on arrival; others: of none.",
		ofTarget: ofClasses(func(c *status.Class) float64 { return float64(c.RejectedTotal) }),
	},
	{
		name: "headgate_would_reject_total", kind: counter,
		help:     "Units admitted in observe mode that would have been rejected in enforce mode.",
		ofTarget: plain(func(t *status.Target) float64 { return float64(t.WouldRejectTotal) }),
	},
	{
		name: "headgate_flood_mode", kind: gauge,
		help:     "1 while SYNs come that nobody stands behind: clients that are not known take no slot before their handshake is complete.",
		ofTarget: plain(func(t *status.Target) float64 { return truth(t.Flood) }),
	},
	{
		name: "headgate_trimmed_total", kind: counter,
		help:     "Of the units admitted, those that there was no slot for and that were ended at once: in a SYN flood, or for clients that say nothing to a listener with TCP_DEFER_ACCEPT.",
		ofTarget: plain(func(t *status.Target) float64 { return float64(t.TrimmedTotal) }),
	},
	{
		name: "headgate_enforcing", kind: gauge,
		help:     "1 in enforce mode, 0 in observe mode.",
		ofTarget: plain(func(t *status.Target) float64 { return truth(t.Mode == "enforce") }),
	},
	{
		name:      "headgate_service_seconds",
		help:      "Time from the last byte of a request to the first byte of its response.",
		histogram: func(d *Detail) *Histogram { return d.Service },
	},
	{
		name:      "headgate_tcp_rtt_seconds",
		help:      "Round trip time of TCP, as the kernel measured it.",
		histogram: func(d *Detail) *Histogram { return d.TCPRTT },
	},
	{
		name:      "headgate_hold_seconds",
		help:      "How long units waited that were let in after it; absent where none can wait.",
		histogram: func(d *Detail) *Histogram { return d.Hold },
	},
	{
		name:             "headgate_handover_seconds",
		help:             "Time from a slot coming free to the verdict that gives it to one that waited, of all targets; absent where none can wait.",
		histogramOfAgent: func(s *Snapshot) *Histogram { return s.Handover },
	},
	{
		name: "headgate_pace_per_second", kind: gauge,
		help:     "Units admitted a second at most, by the pace as enforced now; absent without one.",
		ofTarget: known(func(t *status.Target) float64 { return t.Pace.RatePerSecond }),
	},
	{
		name: "headgate_baseline_seconds", kind: gauge,
		help:     "Latency with no queue, as the algorithm believes; absent while it does not know.",
		ofTarget: known(func(t *status.Target) float64 { return t.BaselineSeconds }),
	},
	{
		name: "headgate_gradient_ratio", kind: gauge,
		help:     "Baseline over the latency now: 1 is no queue; absent while not known.",
		ofTarget: known(func(t *status.Target) float64 { return t.Gradient }),
	},
	{
		name: "headgate_accept_queue_length", kind: gauge,
		help:     "Established connections that the application has not accepted.",
		ofTarget: plain(func(t *status.Target) float64 { return float64(t.AcceptQueue.Length) }),
	},
	{
		name: "headgate_accept_queue_max", kind: gauge,
		help:     "The longest that the accept queue can be, by the backlog of listen(2).",
		ofTarget: plain(func(t *status.Target) float64 { return float64(t.AcceptQueue.Max) }),
	},
	{
		name: "headgate_accept_queue_overflows_total", kind: counter,
		help:     "Connections that the kernel dropped because the accept queue was full.",
		ofTarget: plain(func(t *status.Target) float64 { return float64(t.AcceptQueue.OverflowsTotal) }),
	},
	{
		name: "headgate_windows_total", kind: counter, label: "outcome",
		help: "Windows of measurements: changed and unchanged say what the limit did, empty that there was no sample.",
		ofTarget: func(_ *status.Target, d *Detail, emit func(float64, string)) {
			each(d.Windows, emit)
		},
	},
	{
		name: "headgate_recount_drift", kind: gauge,
		help:     "By how many units too many were counted in flight when the counts were last compared with the sockets; negative where too few were. It was corrected.",
		ofTarget: plain(func(t *status.Target) float64 { return float64(t.Recount.InFlight) }),
	},
	{
		name: "headgate_recounts_total", kind: counter,
		help:    "Times that the counts were compared with the sockets.",
		ofAgent: func(s *Snapshot, emit func(float64, string)) { emit(float64(s.Recounts), "") },
	},
	{
		name: "headgate_map_full_total", kind: counter, label: "map",
		help:    "Entries that a full map, or queue, in the kernel had no room for.",
		ofAgent: func(s *Snapshot, emit func(float64, string)) { each(s.MapFull, emit) },
	},
	{
		name: "headgate_programs_attached", kind: gauge, label: "hook",
		help:    "Programs attached to the kernel now.",
		ofAgent: func(s *Snapshot, emit func(float64, string)) { each(s.ProgramsAttached, emit) },
	},
	{
		name: "headgate_hook_shadowed", kind: gauge, label: "hook",
		help:    "Programs of others that see an arrival before headgate's, or can decide otherwise.",
		ofAgent: func(s *Snapshot, emit func(float64, string)) { each(s.Shadowed, emit) },
	},
	{
		name: "headgate_unprotected", kind: gauge,
		help:    "Cgroups and pods that were found for a rule and are not protected; status says why.",
		ofAgent: func(s *Snapshot, emit func(float64, string)) { emit(float64(len(s.Status.Unprotected)), "") },
	},
	{
		name: "headgate_capability", kind: gauge, label: "name",
		help: "1 when the kernel can do it, 0 when what needs it is off.",
		ofAgent: func(s *Snapshot, emit func(float64, string)) {
			for name, has := range s.Status.Capabilities {
				emit(truth(has), name)
			}
		},
	},
	{
		name: "headgate_lease_age_seconds", kind: gauge,
		help:    "Time since the agent last renewed its lease; when it lapses every gate opens.",
		ofAgent: func(s *Snapshot, emit func(float64, string)) { emit(s.LeaseAge.Seconds(), "") },
	},
	{
		name: "headgate_events_total", kind: counter, label: "type",
		help:    "Events by type, as /api/v1/events has them: rejections are a sample.",
		ofAgent: func(s *Snapshot, emit func(float64, string)) { each(s.Events, emit) },
	},
	{
		name: "headgate_events_lost_total", kind: counter, label: "where",
		help:    "Events that nobody saw. kernel: refusals that were to be told of, and there was no room; reader: events that one who follows them was too slow for.",
		ofAgent: func(s *Snapshot, emit func(float64, string)) { each(s.EventsLost, emit) },
	},
	{
		name: "headgate_config_last_reload_successful", kind: gauge,
		help:    "1 when the last reload of the configuration succeeded or there was none, 0 when it kept the old one.",
		ofAgent: func(s *Snapshot, emit func(float64, string)) { emit(truth(!s.ReloadFailed), "") },
	},
	{
		name: "headgate_config_last_reload_success_timestamp_seconds", kind: gauge,
		help: "When a configuration was put in force last, at the start or by a reload, since the epoch.",
		ofAgent: func(s *Snapshot, emit func(float64, string)) {
			if !s.Loaded.IsZero() {
				emit(float64(s.Loaded.UnixMilli())/1000, "")
			}
		},
	},
}

// plain reads one value of a target.
func plain(read func(*status.Target) float64) func(*status.Target, *Detail, func(float64, string)) {
	return func(t *status.Target, _ *Detail, emit func(float64, string)) { emit(read(t), "") }
}

// ofClasses reads one value of each class of a target.
func ofClasses(read func(*status.Class) float64) func(*status.Target, *Detail, func(float64, string)) {
	return func(t *status.Target, _ *Detail, emit func(float64, string)) {
		for i := range t.Classes {
			emit(read(&t.Classes[i]), t.Classes[i].Name)
		}
	}
}

// known reads one value of a target that is 0 while it is not known.
func known(read func(*status.Target) float64) func(*status.Target, *Detail, func(float64, string)) {
	return func(t *status.Target, _ *Detail, emit func(float64, string)) {
		if v := read(t); v != 0 {
			emit(v, "")
		}
	}
}

// each emits the entries of a map.
func each[T int | uint64](m map[string]T, emit func(float64, string)) {
	for label, n := range m {
		emit(float64(n), label)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
