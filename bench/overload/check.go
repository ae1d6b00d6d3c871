package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

const (
	checked      = "nginx" // the kind of server that is looked at
	checkedLoad  = 2       // times its capacity
	checkedPairs = 3

	// goodputSlack and waitSlack are how much worse than in the file of results
	// a ratio may be: several times what repeated runs differ by.
	goodputSlack = 0.15
	waitSlack    = 2

	// withoutLimiter is how much of the goodput is left at most where nothing
	// limits. More says that there was no overload, and the check shows nothing.
	withoutLimiter = 0.5
)

// check measures in most of a minute what the default algorithm makes of a server
// that is offered twice what it carries, against the best static limit and no
// limiter, and compares with the file of results.
func check(ctx context.Context, s *stage, r Report) (err error) {
	at := slices.IndexFunc(r.Servers, func(s Server) bool { return s.Name == checked })
	if at < 0 {
		return fmt.Errorf("no results of %s to compare with", checked)
	}
	before := r.Servers[at]
	wantGoodput, ok := before.relative(*before.limiter(guarded), static, checkedLoad)
	if !ok {
		return fmt.Errorf("no results of %s at %d times the capacity to compare with", checked, checkedLoad)
	}
	p, _ := before.limiter(guarded).at(checkedLoad)
	wantWait := p.P99Seconds / before.ServiceSeconds

	sub := subjects[slices.IndexFunc(subjects, func(s subject) bool { return s.Name == checked })]
	h := &holder{sub: sub, s: s}
	defer func() { err = errors.Join(err, h.stop()) }()
	if err := h.have(ctx, false); err != nil {
		return err
	}
	service, capacity, err := s.calibrate(ctx, sub)
	if err != nil {
		return err
	}
	at2 := func(name string) (goodput, wait float64, err error) {
		l := limiters[slices.IndexFunc(limiters, func(l limiter) bool { return l.Name == name })]
		if err := s.calm(ctx, sub, 3*service); err != nil {
			return 0, 0, err
		}
		lower, err := l.raise(ctx, s, sub, before.Static, service)
		if err != nil {
			return 0, 0, err
		}
		defer func() { err = errors.Join(err, lower()) }()
		// What is adaptive finds its limit first, as in the whole measurement.
		if _, err := s.offer(ctx, l, sub, checkedLoad*capacity, time.Second, service); err != nil {
			return 0, 0, err
		}
		if err := s.calm(ctx, sub, 3*service); err != nil {
			return 0, 0, err
		}
		p, err := s.offer(ctx, l, sub, checkedLoad*capacity, full.point, service)
		return p.Goodput(), p.P99Seconds / service.Seconds(), err
	}
	var goodputs, waits []float64
	var best float64
	for i := range checkedPairs {
		names := []string{static, guarded}
		if i%2 == 1 {
			slices.Reverse(names)
		}
		goodput := map[string]float64{}
		for _, name := range names {
			g, wait, err := at2(name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if goodput[name] = g; name == guarded {
				waits = append(waits, wait)
			}
		}
		if goodput[static] == 0 {
			return errors.New("no goodput with a static limit: the machine is too busy for this")
		}
		goodputs = append(goodputs, goodput[guarded]/goodput[static])
		best = max(best, goodput[static])
	}
	slices.Sort(goodputs)
	slices.Sort(waits)
	without, _, err := at2(noLimiter)
	if err != nil {
		return err
	}
	var errs []error
	verdict := func(what string, is, was, bound float64, ok bool) {
		fmt.Fprintf(os.Stdout, "%-62s %.2f  (results: %.2f, bound: %.2f)\n", what, is, was, bound)
		if !ok {
			errs = append(errs, fmt.Errorf("%s: %.2f, and the bound is %.2f", what, is, bound))
		}
	}
	goodput, wait := goodputs[len(goodputs)/2], waits[len(waits)/2]
	verdict("goodput of guarded, of that of the best static limit", goodput, wantGoodput,
		wantGoodput-goodputSlack, goodput >= wantGoodput-goodputSlack)
	verdict("p99 of guarded, in service times", wait, wantWait, waitSlack*wantWait, wait <= waitSlack*wantWait)
	if was, ok := before.relative(*before.limiter(noLimiter), static, checkedLoad); ok {
		verdict("goodput of no limiter, of that of the best static limit", without/best, was, withoutLimiter, without/best <= withoutLimiter)
	}
	return errors.Join(errs...)
}
