package config

import (
	"strconv"
	"time"
)

// What can be set. The rates and warm-ups are those of pkg/pace, which speaks
// with the kernel and is therefore not imported.
const (
	maxWait       = time.Hour
	maxWaiting    = 16384 // of the map holds of the programs
	minRate       = 0.001
	maxRate       = 1e6
	maxBurst      = 100000
	minHeadroom   = 0.1
	maxHeadroom   = 10
	minRamp       = time.Second
	maxRamp       = 24 * time.Hour
	minColdFactor = 2
	maxColdFactor = 1000
)

func (d *decoder) end(v value, e *End) {
	d.either(v, func(v value) {
		d.fields(v, map[string]func(value){
			"idle": func(v value) { d.span(v, &e.Idle, time.Millisecond, 10*time.Second) },
		})
	}, func(v value) {
		word := "first_byte"
		choice(d, v, &word, word)
		*e = End{}
	})
}

func (d *decoder) hold(v value, h *Hold) {
	d.fields(v, map[string]func(value){
		"max_wait": func(v value) { d.span(v, &h.MaxWait, 0, maxWait) },
		"max_waiting": func(v value) {
			if n, ok := d.number(v, 1, maxWaiting); ok {
				h.MaxWaiting = n
			}
		},
		"order": func(v value) { choice(d, v, &h.Order, OrderFIFO, OrderLIFO) },
	})
}

func (d *decoder) pace(v value, p *Pace) {
	d.fields(v, map[string]func(value){
		"rate": func(v value) { d.rate(v, &p.Rate) },
		"burst": func(v value) {
			if n, ok := d.number(v, 1, maxBurst); ok {
				p.Burst = n
			}
		},
		"max_wait": func(v value) { d.span(v, &p.MaxWait, 0, maxWait) },
		"headroom": func(v value) {
			if v.describe(Shape{Kind: KindNumber, Min: minHeadroom, Max: maxHeadroom}) {
				return
			}
			if f, ok := d.float(v); ok && d.within(v, f, minHeadroom, maxHeadroom) {
				p.Headroom = f
			}
		},
		"warm_up": func(v value) { d.ramp(v, &p.WarmUp) },
	})
}

func (d *decoder) rate(v value, r *Rate) {
	if v.describe(Shape{Kind: KindAny, Any: []*Shape{
		{Kind: KindNumber, Min: minRate, Max: maxRate},
		{Kind: KindWord, Words: []string{"auto", "none"}},
	}}) {
		return
	}
	s, ok := d.scalar(v, "a number, auto or none")
	switch {
	case !ok:
		return
	case s == "auto":
		*r = Rate{Auto: true}
		return
	case s == "none":
		*r = Rate{}
		return
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		d.failf(v.at, "%s is neither a number nor auto nor none", quote(s))
		return
	}
	if d.within(v, f, minRate, maxRate) {
		*r = Rate{PerSecond: f}
	}
}

func (d *decoder) ramp(v value, r *Ramp) {
	d.fields(v, map[string]func(value){
		"period": func(v value) {
			t, ok := d.duration(v)
			switch {
			case !ok:
			case t != 0 && (t < minRamp || t > maxRamp):
				d.failf(v.at, "%v is neither 0s nor from %v to %v", t, minRamp, maxRamp)
			default:
				r.Period = t
			}
		},
		"cold_factor": func(v value) {
			if n, ok := d.number(v, minColdFactor, maxColdFactor); ok {
				r.ColdFactor = n
			}
		},
	})
}

// within reports whether f is from lo to hi; NaN is not.
func (d *decoder) within(v value, f, lo, hi float64) bool {
	if f >= lo && f <= hi {
		return true
	}
	d.failf(v.at, "%v is not from %s to %s", f, decimal(lo), decimal(hi))
	return false
}
