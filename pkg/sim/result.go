package sim

import (
	"math"

	"headgate/pkg/rtt"
)

// Result is what came of a run. Totals count the attempts that arrived between
// the scenario's From and To; times are in seconds.
type Result struct {
	Scenario Scenario `json:"-"`

	Offered  int `json:"offered"`
	Admitted int `json:"admitted"`
	Good     int `json:"good"` // finished within the deadline
	Late     int `json:"late"` // finished after it, or after the client had given up
	Rejected int `json:"rejected"`

	// Goodput is Good a second.
	Goodput float64 `json:"goodput_per_second"`

	// P50 and P99 are quantiles of the time from the attempt's arrival to its
	// end; P50Service and P99Service the same in multiples of the mean service
	// time of the unit's class. ClientP99 counts from the first attempt, with
	// the SYNs that were dropped and the retries.
	P50        float64 `json:"p50_seconds"`
	P99        float64 `json:"p99_seconds"`
	P50Service float64 `json:"p50_service_times"`
	P99Service float64 `json:"p99_service_times"`
	ClientP99  float64 `json:"client_p99_seconds"`

	// Shares of the units in flight by partition, on average.
	Shares []float64 `json:"partition_shares,omitempty"`

	// Series is the run over time, one point each Step seconds.
	Step   float64       `json:"step_seconds"`
	Series []SeriesPoint `json:"series"`

	latencies, relative, clients quantiles

	from, to float64
}

// SeriesPoint is a stretch of a run.
type SeriesPoint struct {
	At       float64 `json:"at_seconds"` // its begin
	Limit    int     `json:"limit"`      // in force at its last tick
	Refusing int     `json:"refusing"`   // the limit that holds once something is refused
	InFlight int     `json:"in_flight"`  // the most at a tick
	Workers  int     `json:"workers"`
	Offered  int     `json:"offered"`
	Admitted int     `json:"admitted"`
	Rejected int     `json:"rejected"`
	Good     int     `json:"good"` // by time of arrival
	Late     int     `json:"late"`
}

func newResult(sc Scenario) *Result {
	const points = 600
	ticks := math.Ceil(sc.Duration.Seconds() / sc.Tick.Seconds())
	step := sc.Tick.Seconds() * math.Ceil(ticks/points)
	n := int(sc.Duration.Seconds()/step) + 1
	r := &Result{Scenario: sc, Step: step, Series: make([]SeriesPoint, n), from: sc.From.Seconds(), to: sc.To.Seconds()}
	unit := sc.Server.Service.Seconds()
	r.latencies.unit, r.relative.unit, r.clients.unit = unit, unit, unit
	for i := range r.Series {
		r.Series[i].At = float64(i) * step
	}
	return r
}

func (r *Result) point(at float64) *SeriesPoint {
	return &r.Series[min(int(at/r.Step+1e-6), len(r.Series)-1)]
}

func (r *Result) counts(arrived float64) bool { return arrived >= r.from && arrived < r.to }

func (r *Result) offered(now float64) {
	r.point(now).Offered++
	if r.counts(now) {
		r.Offered++
	}
}

func (r *Result) admitted(now float64, j *job) {
	r.point(now).Admitted++
	if r.counts(j.arrived) {
		r.Admitted++
	}
}

func (r *Result) rejected(now float64) {
	r.point(now).Rejected++
	if r.counts(now) {
		r.Rejected++
	}
}

func (r *Result) finished(now float64, j *job, longer float64) {
	latency := now - j.arrived
	good := latency <= j.deadline*longer && !j.abandoned
	p := r.point(j.arrived)
	if good {
		p.Good++
	} else {
		p.Late++
	}
	if !r.counts(j.arrived) {
		return
	}
	if good {
		r.Good++
	} else {
		r.Late++
	}
	r.latencies.add(latency)
	r.relative.add(latency / j.times)
	r.clients.add(now - j.first)
}

func (r *Result) tick(s *simulation) {
	p := r.point(s.now)
	p.Limit = s.gate.decision.Limit
	p.Refusing = s.gate.decision.AfterRefusal
	p.InFlight = max(p.InFlight, s.gate.inFlight)
	p.Workers = s.workers
}

func (r *Result) summarise(g *gate) {
	if last := len(r.Series) - 1; r.Series[last].Limit == 0 {
		r.Series = r.Series[:last]
	}
	service := r.Scenario.Server.Service.Seconds()
	r.Goodput = float64(r.Good) / (r.to - r.from)
	r.P50, r.P99 = r.latencies.at(0.5), r.latencies.at(0.99)
	r.P50Service, r.P99Service = r.relative.at(0.5)/service, r.relative.at(0.99)/service
	r.ClientP99 = r.clients.at(0.99)
	sum := 0.0
	for _, p := range g.partitions {
		sum += p.mean
	}
	for _, p := range g.partitions {
		r.Shares = append(r.Shares, p.mean/max(sum, 1))
	}
}

// quantiles gathers times in bounded memory. The unit keeps them where the
// histogram is fine, from 0.002 to 100000 of it.
type quantiles struct {
	rtt.Histogram
	unit float64 // s
}

func (q *quantiles) add(s float64) { q.Record(seconds(s / q.unit / 1000)) }

// at returns the q-quantile in seconds, within 3 %; 0 when there is none.
func (q *quantiles) at(quantile float64) float64 {
	return q.Quantile(quantile).Seconds() * 1000 * q.unit
}
