package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// steppers are the algorithms that work on windows, by name.
var steppers = map[string]func(*settings, Params) (Stepper, frame){
	"aimd":      newAIMD,
	"blog":      newBlog,
	"gradient":  newGradient,
	"gradient2": newGradient2,
	"vegas":     newVegas,
}

// Names returns the names of all algorithms, sorted.
func Names() []string {
	all := append(slices.Collect(maps.Keys(steppers)), "fixed", "guarded")
	slices.Sort(all)
	return all
}

// New returns a new instance of a named algorithm. The error joins one
// [ParamError] for every setting that is wrong; that of the name itself is
// the key "algorithm".
func New(name string, p Params) (Algorithm, error) {
	s := newSettings()
	var a Algorithm
	switch build := steppers[name]; {
	case build != nil:
		c, def := build(s, p)
		a = s.windowed(p, c, def)
	case name == "guarded":
		a = s.guarded(p)
	case name == "fixed":
		a = newFixed(s, p)
	default:
		return nil, unknown(name)
	}
	if err := s.err(name, p); err != nil {
		return nil, err
	}
	return a, nil
}

// NewStepper returns the arithmetic of a named algorithm without windows, as
// the reference has it: an initial limit outside the bounds is allowed, and
// stays until the first step that moves it. There is none for fixed and
// guarded.
func NewStepper(name string, p Params) (Stepper, error) {
	build := steppers[name]
	if build == nil {
		return nil, unknown(name)
	}
	s := newSettings()
	s.anyInitial = true
	c, _ := build(s, p)
	if err := s.err(name, p); err != nil {
		return nil, err
	}
	return c, nil
}

// Floor returns the least limit that a named algorithm sets, but for a probe of
// guarded; 0 for fixed, which sets none.
func Floor(name string, p Params) int {
	s := newSettings()
	if build := steppers[name]; build != nil {
		_, def := build(s, p)
		return def.min
	}
	if name == "guarded" {
		g := DefaultGuardedParams()
		_, least, _ := s.bounds(p, g.Initial, g.Min, g.Max, 1)
		return least
	}
	return 0
}

func unknown(name string) error {
	return &ParamError{Key: "algorithm", Reason: fmt.Sprintf("%.80q is none of %s", name, strings.Join(Names(), ", "))}
}

// guarded resolves the settings of guarded.
func (s *settings) guarded(p Params) Algorithm {
	g := DefaultGuardedParams()
	g.Initial, g.Min, g.Max = s.bounds(p, g.Initial, g.Min, g.Max, 1)
	set(s, "window", p.Window, &g.Window)
	set(s, "burst", p.Burst, &g.Burst)
	set(s, "dither", p.Dither, &g.Dither)
	set(s, "probe_min", p.ProbeMin, &g.ProbeMin)
	set(s, "probe_max", p.ProbeMax, &g.ProbeMax)
	set(s, "probe_floor", p.ProbeFloor, &g.ProbeFloor)
	set(s, "max_baseline", p.MaxBaseline, &g.MaxBaseline)
	warmUp := number(s, "warm_up", p.WarmUp, 0, 0, time.Hour)
	if p.ProbeMax == nil {
		g.ProbeMax = max(g.ProbeMax, g.ProbeMin)
	}
	if p.Seed != 0 {
		g.Seed = p.Seed
	}
	if len(s.errs) > 0 {
		return nil
	}
	if err := g.Validate(); err != nil {
		s.adopt(err)
		return nil
	}
	a, err := NewGuarded(g)
	if err != nil {
		s.adopt(err)
		return nil
	}
	if warmUp > 0 {
		hold := Decision{Limit: g.Initial, AfterRefusal: g.Initial}
		return &warmingGuarded{Guarded: a, hold: hold, warmUp: warmUp}
	}
	return a
}

func set[T any](s *settings, key string, v *T, to *T) {
	s.asked[key] = true
	if v != nil {
		*to = *v
	}
}

// adopt takes over an error, or joined ones, that begin with their key.
func (s *settings) adopt(err error) {
	if err == nil {
		return
	}
	all := []error{err}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		all = j.Unwrap()
	}
	for _, e := range all {
		if key, reason, ok := strings.Cut(e.Error(), ": "); ok {
			e = &ParamError{Key: key, Reason: reason}
		}
		s.errs = append(s.errs, e)
	}
}
