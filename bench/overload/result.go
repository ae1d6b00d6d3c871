package main

import (
	"slices"

	"headgate/bench/internal/report"
	"headgate/internal/lab/load"
)

// Report is the file of results: one entry a kind of server, each measured in
// one run.
type Report struct {
	Servers []Server `json:"servers"`
}

// Server is one kind of server with each limiter.
type Server struct {
	Name string `json:"name"`
	Says string `json:"says"`

	Machine report.Machine `json:"machine"`
	Short   bool           `json:"short"`

	// Measured with a closed loop, without a limiter, before the others.
	Capacity       float64 `json:"capacity_per_second"`
	ServiceSeconds float64 `json:"service_seconds"` // of one client alone; with its connection, where each request has one
	BoundSeconds   float64 `json:"bound_seconds"`   // within which an answer is good

	// Search is how the best static limit was found.
	Search []Candidate `json:"search"`
	Static int         `json:"best_static_limit"`

	Limiters []Limiter `json:"limiters"`
}

// Candidate is a static limit that was tried, and its goodput a second at once and
// five times the capacity, each time.
type Candidate struct {
	Limit int       `json:"limit"`
	At1   []float64 `json:"goodputs_at_1"`
	At5   []float64 `json:"goodputs_at_5"`
}

// goodput is the mean of the sum at both loads.
func (c Candidate) goodput() (mean float64) {
	for i := range c.At1 {
		mean += (c.At1[i] + c.At5[i]) / float64(len(c.At1))
	}
	return mean
}

// Limiter is what one limiter made of each load.
type Limiter struct {
	Name   string  `json:"name"`
	Says   string  `json:"says"`
	Points []Point `json:"points"`

	// Settling is, for each of several steps from half the capacity to 1.4 times
	// it, how long it took until goodput and p99 were good and stayed so, in
	// seconds; -1: not within the step.
	Settling []float64 `json:"settling_seconds,omitempty"`
}

// Point is one load, in times the capacity.
type Point struct {
	Factor float64 `json:"factor"`
	load.Summary
	Pool *load.PoolUse `json:"pool,omitempty"` // where connections are kept
}

// pooled says whether connections are kept.
func (s Server) pooled() bool {
	return len(s.Limiters) > 0 && len(s.Limiters[0].Points) > 0 && s.Limiters[0].Points[0].Pool != nil
}

// limiter returns the results of that name, nil for none.
func (s Server) limiter(name string) *Limiter {
	i := slices.IndexFunc(s.Limiters, func(l Limiter) bool { return l.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Limiters[i]
}

// at returns the point of that load.
func (l *Limiter) at(factor float64) (Point, bool) {
	i := slices.IndexFunc(l.Points, func(p Point) bool { return p.Factor == factor })
	if i < 0 {
		return Point{}, false
	}
	return l.Points[i], true
}

// relative is the goodput at a load as a part of that with another limiter.
func (s Server) relative(l Limiter, to string, factor float64) (float64, bool) {
	other := s.limiter(to)
	if other == nil {
		return 0, false
	}
	mine, ok := l.at(factor)
	theirs, ok2 := other.at(factor)
	if !ok || !ok2 || theirs.Good == 0 {
		return 0, false
	}
	return mine.Goodput() / theirs.Goodput(), true
}

// best returns the most goodput at a load with a limit that never changes:
// headgate's, nft's or HAProxy's, which are set to the same number.
func (s Server) best(factor float64) (most Point, with string) {
	for _, name := range []string{static, "nft", "HAProxy"} {
		l := s.limiter(name)
		if l == nil {
			continue
		}
		if p, ok := l.at(factor); ok && p.Goodput() > most.Goodput() {
			most, with = p, name
		}
	}
	return most, with
}

// put adds the results of a server in place of earlier ones, in the order in
// which they are measured.
func (r *Report) put(s Server) {
	all := []Server{s}
	for _, old := range r.Servers {
		if old.Name != s.Name {
			all = append(all, old)
		}
	}
	order := func(s Server) int {
		return slices.IndexFunc(subjects, func(sub subject) bool { return sub.Name == s.Name })
	}
	slices.SortFunc(all, func(a, b Server) int { return order(a) - order(b) })
	r.Servers = all
}
