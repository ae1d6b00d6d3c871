package agent

import (
	"time"

	"headgate/pkg/config"
	"headgate/pkg/pace"
)

// pacing computes the rate that a target is paced at, window by window.
type pacing struct {
	rule   *config.Rule
	ramp   *pace.RampRate // nil without a warm-up
	mean   float64        // time in flight, smoothed, s; of rate: auto
	second time.Duration  // the whole second that is running
	passed [2]uint64      // admitted in total, at its begin and at that of the one before

	perSecond float64
}

func newPacing(rule *config.Rule) (*pacing, error) {
	p := &pacing{rule: rule}
	w := rule.Pace.WarmUp
	if !rule.Paced() || rule.Pace.Rate.Auto || w.Period == 0 {
		return p, nil
	}
	var err error
	p.ramp, err = pace.NewRampRate(pace.Ramp{Rate: rule.Pace.Rate.PerSecond, Period: w.Period, ColdFactor: w.ColdFactor})
	return p, err
}

// interval returns the time from one admission to the next; 0 without a pace.
// admitted is the total of the target, and mean that of the window's samples,
// 0 when it has none.
func (p *pacing) interval(now time.Duration, admitted uint64, limit int, mean time.Duration) time.Duration {
	if !p.rule.Paced() {
		return 0
	}
	switch {
	case p.rule.Pace.Rate.Auto:
		if mean > 0 {
			if p.mean == 0 {
				p.mean = mean.Seconds()
			}
			p.mean += 0.2 * (mean.Seconds() - p.mean)
		}
		if p.mean == 0 {
			return 0 // nothing to go by: only the limit decides
		}
		p.perSecond = pace.AutoRate(limit, time.Duration(p.mean*float64(time.Second)), p.rule.Pace.Headroom)
	case p.ramp != nil:
		switch s := now.Truncate(time.Second); {
		case p.second == 0: // what passed before the agent began warms nothing up
			p.second, p.passed = s, [2]uint64{admitted, admitted}
		case s != p.second:
			p.second, p.passed = s, [2]uint64{admitted, p.passed[0]}
		}
		p.perSecond = p.ramp.Rate(now, int(p.passed[0]-p.passed[1]))
	default:
		p.perSecond = p.rule.Pace.Rate.PerSecond
	}
	return time.Duration(pace.Interval(p.perSecond))
}
