package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/term"

	"headgate/bench/internal/gate"
	"headgate/internal/lab"
	"headgate/pkg/agent"
)

const (
	port      = 8080 // the protected one
	proxyPort = 8079 // where HAProxy listens
)

type bench struct {
	lab      *lab.Lab
	srv, cli *lab.Host
	state    string
	pairs    int
	phase    time.Duration
	cpus     int
	short    bool                // leave out what takes long
	held     map[netip.Addr]bool // addresses that clients who stay have already
}

// Ratio compares two ways of doing the same, measured in turn.
type Ratio struct {
	Name   string    `json:"name"`
	Goal   float64   `json:"goal,omitempty"`
	Pairs  int       `json:"pairs"`
	Median float64   `json:"median"`
	Lower  float64   `json:"lower_quartile"`
	Upper  float64   `json:"upper_quartile"`
	Each   []float64 `json:"each"`
}

// subject is something whose cost is measured: raise puts it in place.
type subject struct {
	name  string
	raise func(context.Context) (gate.Lower, error)
}

// toggle measures with and without a subject in turn and compares pair by
// pair; every other pair is in the opposite order.
func (b *bench) toggle(ctx context.Context, name string, s subject, goal float64, measure func(context.Context) (float64, error)) (Ratio, error) {
	with := func() (float64, error) {
		lower, err := s.raise(ctx)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", s.name, err)
		}
		v, err := measure(ctx)
		return v, errors.Join(err, lower())
	}
	without := func() (float64, error) { return measure(ctx) }
	return b.compare(name+", with / without "+s.name, goal, with, without)
}

// noise is a comparison of the same shape that toggles nothing.
func (b *bench) noise(ctx context.Context, name string, measure func(context.Context) (float64, error)) (Ratio, error) {
	without := func() (float64, error) { return measure(ctx) }
	return b.compare(name+", without / without (noise)", 0, without, without)
}

func (b *bench) compare(name string, goal float64, x, y func() (float64, error)) (Ratio, error) {
	r := Ratio{Name: name, Goal: goal, Pairs: b.pairs}
	for i := range b.pairs {
		first, second := x, y
		if i%2 == 1 {
			first, second = y, x
		}
		p, err := first()
		if err != nil {
			return r, err
		}
		q, err := second()
		if err != nil {
			return r, err
		}
		if i%2 == 1 {
			p, q = q, p
		}
		r.Each = append(r.Each, p/q)
		if term.IsTerminal(int(os.Stderr.Fd())) {
			fmt.Fprintf(os.Stderr, "\r  %s: pair %d of %d ", name, i+1, b.pairs)
		}
	}
	sorted := slices.SortedFunc(slices.Values(r.Each), cmp.Compare)
	r.Lower, r.Median, r.Upper = quantile(sorted, .25), quantile(sorted, .5), quantile(sorted, .75)
	if term.IsTerminal(int(os.Stderr.Fd())) {
		fmt.Fprint(os.Stderr, "\r\033[K")
	}
	fmt.Fprintf(os.Stderr, "  %s: %.3f (%.3f to %.3f)\n", name, r.Median, r.Lower, r.Upper)
	return r, nil
}

func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// headgate is an agent with a fixed limit that nobody reaches.
func (b *bench) headgate() subject {
	return subject{"headgate", func(context.Context) (gate.Lower, error) {
		a, err := b.protect(60000)
		if err != nil {
			return nil, err
		}
		return a.Remove, nil
	}}
}

// ctCount is what nftables has for the same purpose: it counts the entries of
// conntrack for the port.
func (b *bench) ctCount() subject {
	return subject{"nft ct count", func(ctx context.Context) (gate.Lower, error) {
		return gate.NFT(ctx, b.srv, port, 60000)
	}}
}

// protect starts an agent with a fixed limit on the port.
func (b *bench) protect(limit int) (*agent.Agent, error) {
	return gate.Headgate(b.srv, port, b.state, gate.Fixed(limit))
}
