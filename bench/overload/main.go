// Command overload offers real servers more than they carry, with several
// limiters in front of them, and measures what is left: goodput, and what those
// who are answered wait. Each kind of server is measured in one run, with a load
// generator that does not wait for answers.
//
//	go run ./bench/overload [-short] [-only nginx,postgres,redis,postgres-pool] [-o bench/results]
//	go run ./bench/overload -table       # what the file of results says, as Markdown
//	go run ./bench/overload -check       # in seconds: are the ratios still what they were?
//
// It needs root, nginx, PostgreSQL, redis, HAProxy and nft, makes its own network
// namespaces and ends what it starts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"headgate/bench/internal/report"
	"headgate/internal/lab"
)

func main() {
	if handled, code := lab.ServerMain(os.Args[1:]); handled {
		os.Exit(code)
	}
	if len(os.Args) == 3 && os.Args[1] == inProcessVerb {
		if err := inProcess(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "overload:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.BoolVar(&o.short, "short", false, "fewer and shorter loads, for a first look: under two minutes")
	flag.StringVar(&o.only, "only", "nginx,postgres,redis", "`servers` to measure, with commas, of these and postgres-pool; the results of the others are kept")
	flag.StringVar(&o.out, "o", "bench/results", "`directory` for overload.json and overload.png")
	flag.BoolVar(&o.table, "table", false, "only print overload.json as Markdown")
	flag.BoolVar(&o.draw, "draw", false, "only draw overload.json again")
	flag.BoolVar(&o.check, "check", false, "compare a few ratios with those of overload.json")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "overload:", err)
		os.Exit(1)
	}
}

type options struct {
	short, table, draw, check bool
	only, out                 string
}

func run(ctx context.Context, o options) error {
	file := filepath.Join(o.out, "overload.json")
	var r Report
	if err := report.Read(file, &r); err != nil && (o.table || o.draw || o.check || !errors.Is(err, os.ErrNotExist)) {
		return err
	}
	switch {
	case o.table:
		return r.markdown(os.Stdout)
	case o.draw:
		return drawPicture(r, filepath.Join(o.out, "overload.png"))
	case o.check:
		return withStage(short, func(s *stage) error { return check(ctx, s, r) })
	}
	chosen, err := choose(o.only)
	if err != nil {
		return err
	}
	p := full
	if o.short {
		p = short
	}
	for _, sub := range chosen {
		var result Server
		err := withStage(p, func(s *stage) (err error) {
			result, err = measure(ctx, s, sub)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", sub.Name, err)
		}
		result.Short = o.short
		r.put(result)
		if err := report.Write(file, r); err != nil {
			return err
		}
	}
	if err := drawPicture(r, filepath.Join(o.out, "overload.png")); err != nil {
		return err
	}
	return r.markdown(os.Stdout)
}

func choose(names string) ([]subject, error) {
	var chosen []subject
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(subjects, func(s subject) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only %s: no such server", name)
		}
		chosen = append(chosen, subjects[i])
	}
	return chosen, nil
}

// withStage makes hosts for f, and takes them away again.
func withStage(p plan, f func(*stage) error) (err error) {
	l, err := lab.New("srv", "cli")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	bpffs, unmount, err := lab.MountBPF()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unmount()) }()
	dir, err := os.MkdirTemp("", "overload-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := &stage{srv: l.Host("srv"), cli: l.Host("cli"), dir: dir, state: filepath.Join(bpffs, "state"), plan: p}
	for i := range 16 {
		a := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 83, 1, byte(100 + i)}), 24)
		if err := s.cli.AddAddr("srv", a); err != nil {
			return err
		}
		s.sources = append(s.sources, a.Addr())
	}
	return f(s)
}

// measure measures one kind of server with all limiters.
func measure(ctx context.Context, s *stage, sub subject) (out Server, err error) {
	began := time.Now()
	progress := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%s %3.0f s: %s\n", sub.Name, time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	out = Server{Name: sub.Name, Says: sub.Says, Machine: report.ThisMachine("HAProxy", "PostgreSQL", "nft", "nginx", "redis")}
	h := &holder{sub: sub, s: s}
	defer func() { err = errors.Join(err, h.stop()) }()
	if err := h.have(ctx, false); err != nil {
		return out, err
	}
	service, capacity, err := s.calibrate(ctx, sub)
	if err != nil {
		return out, err
	}
	out.Capacity, out.ServiceSeconds, out.BoundSeconds = capacity, service.Seconds(), goodWithin*service.Seconds()
	progress("carries %.0f a second, one alone takes %.1f ms", capacity, 1e3*out.ServiceSeconds)
	if err := s.search(ctx, sub, &out); err != nil {
		return out, fmt.Errorf("looking for the best static limit: %w", err)
	}
	progress("the best static limit is %d", out.Static)

	for _, l := range limiters {
		if !l.measuredWith(sub, s.plan) {
			continue
		}
		if err := h.have(ctx, l.inProcess); err != nil {
			return out, err
		}
		result, err := s.limited(ctx, l, sub, h, &out)
		if err != nil {
			return out, fmt.Errorf("%s: %w", l.Name, err)
		}
		out.Limiters = append(out.Limiters, result)
		progress("%s", result)
	}
	return out, nil
}

// limited measures all loads with one limiter.
func (s *stage) limited(ctx context.Context, l limiter, sub subject, h *holder, out *Server) (r Limiter, err error) {
	r = Limiter{Name: l.Name, Says: l.says(out.Static)}
	if err := s.calm(ctx, sub, 3*seconds(out.ServiceSeconds)); err != nil {
		return r, err
	}
	lower, err := l.raise(ctx, s, sub, out.Static, seconds(out.ServiceSeconds))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, lower()) }()
	// What is adaptive has seen an ordinary moment before.
	if _, err := s.offer(ctx, l, sub, 0.5*out.Capacity, s.plan.calm, seconds(out.ServiceSeconds)); err != nil {
		return r, err
	}
	for _, factor := range s.plan.factors {
		p, err := s.offer(ctx, l, sub, factor*out.Capacity, s.plan.point, seconds(out.ServiceSeconds))
		if err != nil {
			return r, fmt.Errorf("at %g times the capacity: %w", factor, err)
		}
		p.Factor = factor
		r.Points = append(r.Points, p)
		if l.Name == noLimiter && sub.restarts {
			err = errors.Join(h.stop(), h.have(ctx, false))
		}
		if err := errors.Join(err, s.calm(ctx, sub, 3*seconds(out.ServiceSeconds))); err != nil {
			return r, err
		}
	}
	if l.adaptive || l.Name == static {
		r.Settling, err = s.settle(ctx, l, sub, out, out.settledGoodput(r))
	}
	return r, err
}

// settledGoodput is the goodput that a step has to come to: that of the best
// static limit at the load of the step.
func (s Server) settledGoodput(now Limiter) float64 {
	l := s.limiter(static)
	if l == nil {
		l = &now
	}
	if p, ok := l.at(1.4); ok {
		return p.Goodput()
	}
	return s.Capacity
}

func (l Limiter) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: goodput", l.Name)
	for _, p := range l.Points {
		fmt.Fprintf(&b, " %.0f", p.Goodput())
	}
	fmt.Fprintf(&b, ", p99 ms")
	for _, p := range l.Points {
		fmt.Fprintf(&b, " %.0f", 1e3*p.P99Seconds)
	}
	if l.Settling != nil {
		fmt.Fprintf(&b, ", settled after %v s", l.Settling)
	}
	return b.String()
}

// holder has the server running, in one of its forms.
type holder struct {
	sub     subject
	s       *stage
	down    func() error // nil: it is not running
	guarded bool
}

// have has it running with or without a limiter inside.
func (h *holder) have(ctx context.Context, guarded bool) error {
	if h.down != nil && h.guarded == guarded {
		return nil
	}
	if err := h.stop(); err != nil {
		return err
	}
	start := h.sub.start
	if guarded {
		start = h.sub.guarded
	}
	down, err := start(ctx, h.s)
	if err != nil {
		return err
	}
	h.down, h.guarded = down, guarded
	return nil
}

func (h *holder) stop() error {
	if h.down == nil {
		return nil
	}
	down := h.down
	h.down = nil
	return down()
}
