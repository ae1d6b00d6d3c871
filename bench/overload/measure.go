package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/load"
)

// stage is where it is measured.
type stage struct {
	srv, cli *lab.Host
	sources  []netip.Addr // of the clients
	dir      string       // for files
	state    string       // on a bpffs
	plan     plan
}

// plan is how long things take.
type plan struct {
	lead, point    time.Duration // of a load: not looked at, and looked at
	closed         time.Duration // of each measurement of the capacity
	candidate      time.Duration
	calm, step     time.Duration // of a step
	steps          int
	factors        []float64
	onlyTheDefault bool // of headgate's algorithms
}

const (
	patience   = time.Second            // of a client
	pause      = 100 * time.Millisecond // of a pool that could not open a connection
	acquire    = 2                      // for so many service times a client of a pool waits for a free connection
	goodWithin = 5                      // so many service times an answer is good
)

// full and short are the whole measurement and a first look.
var (
	full = plan{
		lead: 300 * time.Millisecond, point: 2 * time.Second, closed: 600 * time.Millisecond,
		candidate: 700 * time.Millisecond, calm: 700 * time.Millisecond, step: 1300 * time.Millisecond, steps: 3,
		factors: []float64{0.5, 1, 1.4, 2, 5, 10},
	}
	short = plan{
		lead: 200 * time.Millisecond, point: 800 * time.Millisecond, closed: 200 * time.Millisecond,
		candidate: 200 * time.Millisecond, calm: 400 * time.Millisecond, step: 800 * time.Millisecond, steps: 1,
		factors: []float64{1, 2, 5}, onlyTheDefault: true,
	}
)

func (s *stage) target(l limiter) netip.AddrPort {
	if l.proxied {
		return netip.AddrPortFrom(s.srv.Addr4, proxyPort)
	}
	return netip.AddrPortFrom(s.srv.Addr4, port)
}

// begin connects, from the network namespace of the clients, and logs in. Until
// another deadline is set all on the connection has to be over within patience.
func (s *stage) begin(ctx context.Context, to netip.AddrPort, sub subject) (c *load.Session, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = s.cli.Do(func() error {
		c, err = load.Dial(ctx, netip.Addr{}, to, sub.login...)
		return err
	})
	return c, err
}

// visit is one request on a connection of its own.
func (s *stage) visit(ctx context.Context, sub subject) error {
	c, err := s.begin(ctx, netip.AddrPortFrom(s.srv.Addr4, port), sub)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Say(sub.ask)
}

// closed has so many clients that each wait for an answer before they ask
// again, and returns what took how long.
func (s *stage) closed(ctx context.Context, sub subject, clients int, d time.Duration) (took []time.Duration, perSecond float64, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	ask := func() error { return s.visit(ctx, sub) }
	begin := time.Now()
	for range clients {
		wg.Go(func() {
			failure := func() error {
				ask := ask
				if sub.pool > 0 {
					c, err := s.begin(ctx, netip.AddrPortFrom(s.srv.Addr4, port), sub)
					if err != nil {
						return err
					}
					defer c.Close()
					ask = func() error {
						_ = c.SetDeadline(time.Now().Add(patience))
						return c.Say(sub.ask)
					}
				}
				for time.Since(begin) < d {
					asked := time.Now()
					if err := ask(); err != nil {
						return err
					}
					mu.Lock()
					took = append(took, time.Since(asked))
					mu.Unlock()
				}
				return nil
			}()
			mu.Lock()
			err = errors.Join(err, failure)
			mu.Unlock()
		})
	}
	wg.Wait()
	slices.Sort(took)
	return took, float64(len(took)) / time.Since(begin).Seconds(), err
}

// calibrate measures what a server takes for one request, and carries.
func (s *stage) calibrate(ctx context.Context, sub subject) (service time.Duration, capacity float64, err error) {
	if err := s.calm(ctx, sub, time.Second); err != nil {
		return 0, 0, err
	}
	for _, clients := range []int{1, 2, 4, 8, 16, 20, 24} {
		took, rate, err := s.closed(ctx, sub, clients, s.plan.closed)
		if err != nil {
			return 0, 0, fmt.Errorf("measuring the capacity with %d clients: %w", clients, err)
		}
		if clients == 1 {
			service = took[len(took)/2]
		}
		if capacity = max(capacity, rate); rate < 0.8*capacity {
			break
		}
	}
	return service, capacity, nil
}

// calm waits until a server answers as one that has nothing else to do, three
// times in a row.
func (s *stage) calm(ctx context.Context, sub subject, within time.Duration) error {
	var last error
	good := 0
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); {
		if err := ctx.Err(); err != nil {
			return err
		}
		asked := time.Now()
		last = s.visit(ctx, sub)
		if took := time.Since(asked); last == nil && took > within {
			last = fmt.Errorf("alone a request takes %v, more than %v", took, within)
		}
		if last != nil {
			good = 0
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if good++; good == 3 {
			return nil
		}
	}
	return fmt.Errorf("the server does not come to rest: %w", last)
}

// send offers a load from outside, and returns what the clients got, and what their
// pool has done if they have one.
func (s *stage) send(ctx context.Context, l limiter, sub subject, arrivals load.Arrivals, service time.Duration) (rec *load.Recorder, use *load.PoolUse, err error) {
	rec = new(load.Recorder)
	if sub.pool > 0 {
		p := load.Pool{
			Open: func(ctx context.Context) (*load.Session, error) { return s.begin(ctx, s.target(l), sub) },
			Max:  sub.pool, Pause: pause, Acquire: acquire * service, Timeout: patience,
		}
		use = new(load.PoolUse)
		*use, err = p.Run(ctx, arrivals, []load.Turn{sub.ask}, rec.Record)
	} else {
		err = s.cli.Do(func() error {
			return load.Run(ctx, load.Config{
				Target: s.target(l), Arrivals: arrivals, Sources: s.sources, Turns: append(slices.Clone(sub.login), sub.ask),
				Timeout: patience, MaxOutstanding: 16_000,
			}, rec.Record)
		})
	}
	if err != nil {
		return nil, use, err
	}
	if c := rec.Counts(); c.Unsent > 0 {
		return nil, use, fmt.Errorf("the load generator did not keep up: %d of %d requests were not sent", c.Unsent, c.Arrived)
	}
	return rec, use, nil
}

// offer measures one load, after a moment of it that is not looked at.
func (s *stage) offer(ctx context.Context, l limiter, sub subject, rate float64, d, service time.Duration) (Point, error) {
	lead := min(s.plan.lead, d)
	rec, use, err := s.send(ctx, l, sub, load.Poisson(uint64(rate), load.Step{Rate: rate, For: lead + d}), service)
	if err != nil {
		return Point{}, err
	}
	return Point{
		Summary: rec.Summarize(lead, lead+d, goodWithin*service),
		Pool:    use,
	}, nil
}

// search looks for the static limit with the most goodput at once and five times
// the capacity together: among powers of two, and then, measured twice more, among
// the best two of these and those half-way beside the best.
func (s *stage) search(ctx context.Context, sub subject, out *Server) error {
	static := limiters[slices.IndexFunc(limiters, func(l limiter) bool { return l.Name == static })]
	try := func(limit int) (err error) {
		lower, err := static.raise(ctx, s, sub, limit, seconds(out.ServiceSeconds))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lower()) }()
		at := slices.IndexFunc(out.Search, func(c Candidate) bool { return c.Limit == limit })
		if at < 0 {
			at, out.Search = len(out.Search), append(out.Search, Candidate{Limit: limit})
		}
		for _, load := range []struct {
			factor float64
			all    *[]float64
		}{{1, &out.Search[at].At1}, {5, &out.Search[at].At5}} {
			p, err := s.offer(ctx, static, sub, load.factor*out.Capacity, s.plan.candidate, seconds(out.ServiceSeconds))
			if err != nil {
				return err
			}
			*load.all = append(*load.all, p.Goodput())
		}
		return nil
	}
	for limit := 1; limit <= 128; limit *= 2 {
		if err := try(limit); err != nil {
			return err
		}
	}
	tried := slices.SortedFunc(slices.Values(out.Search), func(a, b Candidate) int { return cmp.Compare(b.goodput(), a.goodput()) })
	best, second := tried[0].Limit, tried[1].Limit
	again := []int{second, max(min(best-1, best*10/14), 1), best, max(best+1, best*14/10)}
	slices.Sort(again)
	again = slices.Compact(again)
	for range 2 {
		for _, limit := range again {
			if err := try(limit); err != nil {
				return err
			}
		}
	}
	slices.SortFunc(out.Search, func(a, b Candidate) int { return a.Limit - b.Limit })
	out.Static = bestLimit(slices.DeleteFunc(slices.Clone(out.Search), func(c Candidate) bool { return !slices.Contains(again, c.Limit) }))
	return nil
}

// bestLimit is the best limit of some; of those within a per cent the lowest.
func bestLimit(of []Candidate) int {
	var most float64
	for _, c := range of {
		most = max(most, c.goodput())
	}
	best := 0
	for _, c := range of {
		if c.goodput() >= 0.99*most && (best == 0 || c.Limit < best) {
			best = c.Limit
		}
	}
	return best
}

// settle steps from half the capacity to 1.4 times it, several times, and says
// how long each took until goodput was 0.9 of want a second and p99 within the
// bound, of all that arrived from then to the end of the step.
func (s *stage) settle(ctx context.Context, l limiter, sub subject, out *Server, want float64) (all []float64, err error) {
	var steps []load.Step
	for range s.plan.steps {
		steps = append(steps, load.Step{Rate: 0.5 * out.Capacity, For: s.plan.calm}, load.Step{Rate: 1.4 * out.Capacity, For: s.plan.step})
	}
	rec, _, err := s.send(ctx, l, sub, load.Poisson(7, steps...), seconds(out.ServiceSeconds))
	if err != nil {
		return nil, err
	}
	bound := seconds(out.BoundSeconds)
	for i := range s.plan.steps {
		begin := time.Duration(i)*(s.plan.calm+s.plan.step) + s.plan.calm
		all = append(all, settled(rec, begin, begin+s.plan.step, bound, want))
	}
	return all, nil
}

// resolution is how exactly the time of settling is known. Half of a step at
// least has to be good.
const resolution = 50 * time.Millisecond

func settled(rec *load.Recorder, begin, end, bound time.Duration, want float64) float64 {
	for from := begin; from <= begin+(end-begin)/2; from += resolution {
		rest, next := rec.Summarize(from, end, bound), rec.Summarize(from, from+2*resolution, bound)
		good := func(s load.Summary) bool { return s.Goodput() >= 0.9*want && s.P99Seconds <= bound.Seconds() }
		if good(rest) && good(next) {
			return (from - begin).Seconds()
		}
	}
	return -1
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
