package controller

import "time"

// longWarmUp is how many samples are averaged before the long RTT is
// smoothed exponentially.
const longWarmUp = 10

// Gradient2 is the Gradient2Limit of Netflix's concurrency-limits: it
// compares the RTT of a window with a long average. It unlearns a lasting
// overload, because the long average follows it.
//
// Settings: initial 20, min 20, max 200, smoothing 0.2, queue_size 4,
// long_window 600s, rtt_tolerance 1.5; windows of 1 s.
type Gradient2 struct {
	min, max   float64
	smoothing  float64
	queueSize  Amount
	longWindow Horizon
	tolerance  float64

	limit    float64
	long     float64 // ns
	last     time.Duration
	warm     int     // samples in the plain mean
	warmSum  float64 // ns
	gradient float64
	queue    float64
	idle     bool // app-limited in the last step
}

func newGradient2(s *settings, p Params) (Stepper, frame) {
	initial, lo, hi := s.bounds(p, 20, 20, 200, 1)
	g := &Gradient2{
		min:        float64(lo),
		max:        float64(hi),
		smoothing:  s.share("smoothing", p.Smoothing, 0.2),
		queueSize:  s.amount("queue_size", p.QueueSize, Units(4)),
		longWindow: s.horizon("long_window", p.LongWindow, Horizon{Time: 600 * time.Second}),
		tolerance:  number(s, "rtt_tolerance", p.RTTTolerance, 1.5, 1, 1000),
		limit:      float64(initial),
		gradient:   1,
	}
	return g, frame{min: lo, max: hi, shortest: time.Second, longest: time.Second}
}

// OnSample takes one step.
func (g *Gradient2) OnSample(s Sample) {
	if s.Warming {
		return
	}
	g.queue = g.queueSize.at(g.limit)
	g.last = s.RTT
	short := float64(max(s.RTT, 0))
	long := g.addLong(short, s)
	if long <= 0 {
		// Nothing but zeros so far. The reference divides zero by zero here
		// and never recovers.
		short = 1
		long = 1
		g.long, g.warmSum = 1, float64(max(g.warm, 1))
	}
	if long/short > 2 {
		g.long = g.long * toward(1, 0.95, s.weight())
	}
	g.idle = float64(s.InFlight) < g.limit/2
	if g.idle {
		return
	}
	g.gradient = max(0.5, min(1, g.tolerance*long/short))
	limit := float64(g.limit*g.gradient) + g.queue
	limit = toward(g.limit, limit, g.smoothing)
	limit = max(g.min, min(g.max, limit))
	g.limit = toward(g.limit, limit, s.weight())
}

// addLong takes a short RTT into the long one and returns that.
func (g *Gradient2) addLong(short float64, s Sample) float64 {
	if g.warm < longWarmUp {
		g.warm++
		g.warmSum += short
		g.long = g.warmSum / float64(g.warm)
		return g.long
	}
	factor := 2 / (g.longWindow.windows(s.Span) + 1)
	g.long = toward(g.long, short, factor*s.weight())
	return g.long
}

// Limit returns the enforced limit: the estimate, truncated.
func (g *Gradient2) Limit() int { return truncate(g.limit) }

// EstimatedLimit returns the limit before truncation.
func (g *Gradient2) EstimatedLimit() float64 { return g.limit }

// LongRTT returns the long RTT in nanoseconds.
func (g *Gradient2) LongRTT() float64 { return g.long }

// LastRTT returns the RTT of the last step.
func (g *Gradient2) LastRTT() time.Duration { return g.last }

// Terms returns the state after the last step.
func (g *Gradient2) Terms() []Term {
	return []Term{
		{"limit", g.limit, "The estimate of which the enforced limit is the whole part."},
		{"baseline_seconds", g.long / 1e9, "Long RTT: what the RTT is compared with. It follows a lasting overload."},
		{"gradient", g.gradient, "Tolerance times long RTT over RTT, 0.5 to 1: the limit is multiplied by it, smoothed."},
		{"queue_size", g.queue, "Units that a step adds before smoothing."},
		{"app_limited", truth(g.idle), "1 when less than half of the limit was in use, so that it stayed."},
	}
}
