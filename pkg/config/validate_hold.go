package config

// validateUnit checks what goes with the unit of a rule.
func (d *decoder) validateUnit(r *Rule, o origin) {
	if r.Unit != UnitRequest {
		if at, ok := d.own(o, "end"); ok {
			d.failf(at, "says when a request is over, but the unit is %s", r.Unit)
		}
		return
	}
	if r.Signal == SignalConnection || r.Signal == SignalAccept {
		d.failf(d.whereRule(o, "signal"), "what a connection takes says nothing of the requests on it; with unit: request this is service or rtt")
	}
	if r.Reject == RejectDrop {
		d.failf(d.whereRule(o, "reject"), "a request cannot be dropped, since TCP would send it again and again; with unit: request this is reset")
	}
}

// validateSignal checks that the algorithm can do something with the signal. A
// wait is next to nothing while a worker is free: there is no latency without a
// queue that another could be compared with, as all algorithms but these do.
func (d *decoder) validateSignal(r *Rule, o origin) {
	if algorithm := r.Limit.Algorithm; r.Signal == SignalAccept && algorithm != "aimd" && algorithm != "fixed" {
		d.failf(d.whereRule(o, "signal"), "accept is next to 0 while a worker is free, so %s has nothing to compare a wait with; use limit: {algorithm: aimd, timeout: ...} with the wait that is too long", algorithm)
	}
}

// validateWaits checks what belongs together in hold and pace. What the
// defaults say and the rule has no use for is no error.
func (d *decoder) validateWaits(r *Rule, o origin) {
	hold, holds := d.own(o, "hold")
	_, slot := d.own(o, "hold.max_wait")
	_, turn := d.own(o, "pace.max_wait")
	if holds && !slot && !turn && !r.Waits() {
		d.failf(hold, "nothing waits without a max_wait here or in pace")
	}

	pace, paces := d.own(o, "pace")
	_, rate := d.own(o, "pace.rate")
	if paces && !rate && !r.Paced() {
		d.failf(pace, "has no rate")
	}
	if at, ok := d.own(o, "pace.headroom"); ok && r.Pace.Rate.PerSecond > 0 {
		d.failf(at, "is a factor of rate: auto, but the rate is %s", r.Pace.Rate)
	}
	d.validateRamp(r, o)
}

func (d *decoder) validateRamp(r *Rule, o origin) {
	p := &r.Pace
	ramp, ramps := d.own(o, "pace.warm_up")
	_, period := d.own(o, "pace.warm_up.period")
	switch units := int64(p.WarmUp.Period.Seconds() * p.Rate.PerSecond); {
	case ramps && !period && p.WarmUp.Period == 0:
		d.failf(ramp, "has no period")
	case p.WarmUp.Period == 0 || !r.Paced():
	case p.Rate.Auto:
		d.failf(d.whereRule(o, "pace.warm_up.period"), "not with rate: auto, which begins at the initial limit and rises with it; 0s turns the warm-up off")
	case units < int64(p.WarmUp.ColdFactor-1):
		d.failf(d.whereRule(o, "pace.warm_up.period"), "%v at %s a second has room for %d of the %d units (cold_factor - 1) that a warm-up needs at least",
			p.WarmUp.Period, p.Rate, units, p.WarmUp.ColdFactor-1)
	}
}

// own returns where a key was written in the rule itself.
func (d *decoder) own(o origin, key string) (place, bool) {
	at, ok := d.at[o.at.key+"."+key]
	return at, ok
}
