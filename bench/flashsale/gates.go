package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"headgate/bench/internal/gate"
	"headgate/internal/lab"
	"headgate/pkg/config"
	"headgate/pkg/status"
)

const (
	port       = 8000 // where clients go
	behindPort = 8001 // where the application listens behind a proxy
)

// post is one way to stand in front of the service.
type post struct {
	Name string
	Says string // what it is set to

	proxied bool
	raise   func(context.Context, *stage) (*raised, error)
}

// raised is a gate in place.
type raised struct {
	lower gate.Lower
	look  func() (status.Target, bool) // nil where there is nothing to see
}

// stage is where the gates stand.
type stage struct {
	srv    *lab.Host
	dir    string       // for files
	state  string       // on a bpffs
	health netip.Prefix // where health checks come from
}

// posts are compared in this order. The static ones are set as people set them
// who know the service on a good day: a pool of 16 with 50 ms each, a database
// with room for 200.
var posts = []post{
	{
		Name: "no limiter", Says: "nothing",
		raise: blind(func(context.Context, *stage) (gate.Lower, error) { return func() error { return nil }, nil }),
	},
	{
		Name: "static rate", Says: "nft: limit rate over 5000/second",
		raise: blind(func(ctx context.Context, s *stage) (gate.Lower, error) { return gate.NFTRate(ctx, s.srv, port, 5000) }),
	},
	{
		Name: "static connections", Says: "nft: ct count over 200",
		raise: blind(func(ctx context.Context, s *stage) (gate.Lower, error) { return gate.NFT(ctx, s.srv, port, 200) }),
	},
	{
		Name: "HAProxy", Says: fmt.Sprintf("maxconn %d to the server, queue 1 s", threads), proxied: true,
		raise: blind(func(ctx context.Context, s *stage) (gate.Lower, error) {
			return gate.HAProxy{
				Port: port, Behind: behindPort, MaxConn: threads, Queue: time.Second, HTTP: true,
			}.Start(ctx, s.srv, s.dir)
		}),
	},
	{
		Name: "headgate, connections", Says: "all defaults",
		raise: headgate(func(*config.Rule) {}),
	},
	{
		Name: "headgate, requests", Says: "unit: request, else all defaults",
		raise: headgate(func(r *config.Rule) { r.Unit = config.UnitRequest }),
	},
}

// blind raises a gate that says nothing of what it does.
func blind(raise func(context.Context, *stage) (gate.Lower, error)) func(context.Context, *stage) (*raised, error) {
	return func(ctx context.Context, s *stage) (*raised, error) {
		lower, err := raise(ctx, s)
		return &raised{lower: lower}, err
	}
}

func headgate(set func(*config.Rule)) func(context.Context, *stage) (*raised, error) {
	return func(_ context.Context, s *stage) (*raised, error) {
		a, err := gate.Headgate(s.srv, port, s.state, func(r *config.Rule) {
			r.Exempt = []netip.Prefix{s.health}
			set(r)
		})
		if err != nil {
			return nil, err
		}
		return &raised{lower: a.Remove, look: func() (status.Target, bool) {
			targets := a.Status().Targets
			if len(targets) == 0 {
				return status.Target{}, false
			}
			return targets[0], true
		}}, nil
	}
}
