package main

import (
	"context"
	"fmt"
	"time"

	"headgate/bench/internal/gate"
	"headgate/pkg/config"
)

// The names of the limiters that others are compared with.
const (
	noLimiter = "no limiter"
	static    = "headgate fixed"
	guarded   = "headgate guarded"
)

// limiter is a way to keep a server from being overloaded.
type limiter struct {
	Name string
	says func(limit int) string

	proxied   bool // clients go to the proxy's port
	inProcess bool // the server is started with it
	adaptive  bool // finds its limit itself
	pooled    bool // only where connections are kept
	raise     func(ctx context.Context, s *stage, sub subject, limit int, service time.Duration) (gate.Lower, error)
}

// limiters are compared in this order. Those that take a limit are told the
// best one.
var limiters = []limiter{
	{
		Name: noLimiter, says: func(int) string { return "what the server does by itself" },
		raise: func(context.Context, *stage, subject, int, time.Duration) (gate.Lower, error) {
			return func() error { return nil }, nil
		},
	},
	{
		Name: static, says: func(n int) string { return fmt.Sprintf("the best static limit, %d", n) },
		raise: func(_ context.Context, s *stage, _ subject, limit int, _ time.Duration) (gate.Lower, error) {
			return headgate(s, gate.Fixed(limit))
		},
	},
	{
		Name: "nft", says: func(n int) string { return fmt.Sprintf("ct count over %d", n) },
		raise: func(ctx context.Context, s *stage, _ subject, limit int, _ time.Duration) (gate.Lower, error) {
			return gate.NFT(ctx, s.srv, port, limit)
		},
	},
	{
		Name: "HAProxy", proxied: true,
		says: func(n int) string { return fmt.Sprintf("maxconn %d, in its queue for a service time at most", n) },
		raise: func(ctx context.Context, s *stage, sub subject, limit int, service time.Duration) (gate.Lower, error) {
			return gate.HAProxy{
				Port: proxyPort, Behind: port, MaxConn: limit, Queue: service, HTTP: sub.http,
			}.Start(ctx, s.srv, s.dir)
		},
	},
	{
		Name: "in-process", inProcess: true, adaptive: true,
		says: func(int) string { return "failsafe-go's adaptive limiter in the Go server behind nginx, defaults" },
		raise: func(context.Context, *stage, subject, int, time.Duration) (gate.Lower, error) {
			return func() error { return nil }, nil
		},
	},
	adaptive(guarded, "guarded", "all defaults"),
	{
		Name: "headgate 8 by request", pooled: true,
		says: func(int) string {
			return "as the recipe for pools: a fixed limit of 8 requests; who is over waits for a second at most"
		},
		raise: func(_ context.Context, s *stage, _ subject, _ int, _ time.Duration) (gate.Lower, error) {
			return headgate(s, func(r *config.Rule) {
				gate.Fixed(8)(r)
				r.Unit = config.UnitRequest
				r.Hold.MaxWait = time.Second
			})
		},
	},
	{
		Name: "headgate guarded, requests", adaptive: true, pooled: true,
		says: func(int) string { return "unit request; who is over waits for a service time at most" },
		raise: func(_ context.Context, s *stage, _ subject, _ int, service time.Duration) (gate.Lower, error) {
			return headgate(s, func(r *config.Rule) {
				gate.Algorithm("guarded")(r)
				r.Unit = config.UnitRequest
				r.Hold.MaxWait = service
			})
		},
	},
	adaptive("headgate gradient2", "gradient2", "all defaults"),
	adaptive("headgate blog", "blog", "defaults without its warm-up of a minute"),
}

func adaptive(name, algorithm, says string) limiter {
	return limiter{
		Name: name, adaptive: true, says: func(int) string { return says },
		raise: func(_ context.Context, s *stage, _ subject, _ int, _ time.Duration) (gate.Lower, error) {
			return headgate(s, gate.Algorithm(algorithm))
		},
	}
}

// measuredWith says whether a limiter is measured with that server, by a plan.
// Of the adaptive ones only the default is where connections are kept: none has
// a hold on those that are there.
func (l limiter) measuredWith(sub subject, p plan) bool {
	switch {
	case l.pooled:
		return sub.pool > 0
	case l.adaptive && l.Name != guarded && (p.onlyTheDefault || sub.pool > 0):
		return false
	case l.inProcess:
		return sub.guarded != nil
	}
	return true
}

func headgate(s *stage, set func(*config.Rule)) (gate.Lower, error) {
	a, err := gate.Headgate(s.srv, port, s.state, set)
	if err != nil {
		return nil, err
	}
	return a.Remove, nil
}
