package controller

// Resume has a new algorithm go on where another instance of it is, under other
// settings: with what that has learned, as far as the settings of next allow. It
// returns false, and does nothing, when they are not of one kind or this kind
// learns nothing that would be worth it. before is not to be used any more.
func Resume(next, before Algorithm) bool {
	to, from := guardedIn(next), guardedIn(before)
	if to == nil || from == nil {
		return false
	}
	if w, ok := next.(*warmingGuarded); ok {
		if was, ok := before.(*warmingGuarded); ok && !was.over {
			w.started, w.born = was.started, was.born
		} else {
			w.started, w.over = true, true // it is warm
		}
	}
	to.resume(from)
	return true
}

func guardedIn(a Algorithm) *Guarded {
	switch a := a.(type) {
	case *Guarded:
		return a
	case *warmingGuarded:
		return a.Guarded
	}
	return nil
}

// resume takes over the state of another instance within the own settings.
func (g *Guarded) resume(from *Guarded) {
	p, rng := g.p, g.rng
	*g = *from
	g.p, g.rng = p, rng
	g.limit, g.former = g.bound(g.limit), g.bound(g.former)
	if g.baseline > 0 {
		g.setBaseline(g.baseline)
	}
	d := &g.decision
	if d.Limit == 0 {
		return // it has yet to begin
	}
	least := g.p.Min
	if g.probe.open {
		least = 0 // a probe goes below it, and ends soon
	}
	d.Limit = min(max(d.Limit, least), g.p.Max)
	d.AfterRefusal = min(max(d.AfterRefusal, least), g.p.Max)
}
