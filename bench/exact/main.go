// Command exact measures how well a limit of 50 connections is kept, by nft,
// HAProxy and headgate: under a thousand connects at once, beside a flood of SYNs
// that nobody stands behind, and after thousands of connections of all kinds of
// ends.
//
//	go run ./bench/exact [-short] [-o bench/results]
//	go run ./bench/exact -table    # what the file of results says, as Markdown
//
// It needs root, HAProxy and nft, makes its own network namespaces and ends what
// it starts.
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
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"headgate/bench/internal/gate"
	"headgate/bench/internal/report"
	"headgate/internal/lab"
)

const (
	port      = 8080
	proxyPort = 8090
	limit     = 50
)

func main() {
	short := flag.Bool("short", false, "less of everything, for a first look")
	out := flag.String("o", "bench/results", "`directory` for exact.json and exact.png")
	table := flag.Bool("table", false, "only print exact.json as Markdown")
	again := flag.Bool("draw", false, "only draw exact.json again")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	err := run(ctx, *short, *table, *again, filepath.Join(*out, "exact.json"))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "exact:", err)
		os.Exit(1)
	}
}

// Report is the file of results.
type Report struct {
	Machine report.Machine `json:"machine"`
	Short   bool           `json:"short"`
	Limit   int            `json:"limit"`
	Gates   []Gate         `json:"gates"`
}

// Gate is what one gate did.
type Gate struct {
	Name   string  `json:"name"`
	Says   string  `json:"says"`
	Bursts []Burst `json:"bursts"`
	Flood  Flood   `json:"flood"`
	Churn  Churn   `json:"churn"`
}

// post is where a gate stands, and how it is put there.
type post struct {
	name, says string
	port       uint16 // of its clients
	raise      func(context.Context, *stage) (gate.Lower, error)
}

var posts = []post{
	{"nft", fmt.Sprintf("ct count over %d, reject with tcp reset", limit), port,
		func(ctx context.Context, s *stage) (gate.Lower, error) {
			return gate.NFT(ctx, s.srv, port, limit)
		}},
	{"HAProxy", fmt.Sprintf("maxconn %d to the server, queue 200 ms", limit), proxyPort,
		func(ctx context.Context, s *stage) (gate.Lower, error) {
			return gate.HAProxy{Port: proxyPort, Behind: port, MaxConn: limit, Queue: 200 * time.Millisecond}.Start(ctx, s.srv, s.dir)
		}},
	{"headgate", fmt.Sprintf("fixed, %d", limit), port,
		func(_ context.Context, s *stage) (gate.Lower, error) {
			a, err := gate.Headgate(s.srv, port, s.state, gate.Fixed(limit))
			if err != nil {
				return nil, err
			}
			s.count = func() int { return a.Status().Targets[0].InFlight }
			return func() error {
				s.count = nil
				return a.Remove()
			}, nil
		}},
}

// stage is where it is measured.
type stage struct {
	srv, cli, foe *lab.Host
	server        *server
	dir, state    string
	plan          plan
	count         func() int // what the gate counts now; nil where it does not say
}

type plan struct {
	bursts int
	flood  time.Duration
	churn  int
}

func run(ctx context.Context, short, table, again bool, file string) error {
	picture := strings.TrimSuffix(file, ".json") + ".png"
	var r Report
	if table || again {
		if err := report.Read(file, &r); err != nil {
			return err
		}
	}
	switch {
	case table:
		return r.markdown(os.Stdout)
	case again:
		return drawPicture(r, picture)
	}
	r = Report{Machine: report.ThisMachine("HAProxy", "nft"), Short: short, Limit: limit}
	p := plan{bursts: 10, flood: 5 * time.Second, churn: 10_000}
	if short {
		p = plan{bursts: 3, flood: 2 * time.Second, churn: 2000}
	}
	if err := measure(ctx, p, &r); err != nil {
		return err
	}
	if err := errors.Join(report.Write(file, r), drawPicture(r, picture)); err != nil {
		return err
	}
	return r.markdown(os.Stdout)
}

// measure measures each gate in a lab of its own: what connection tracking
// remembers of one is none of the next one's.
func measure(ctx context.Context, p plan, r *Report) error {
	for _, post := range posts {
		g, err := post.measure(ctx, p)
		if err != nil {
			return fmt.Errorf("%s: %w", post.name, err)
		}
		r.Gates = append(r.Gates, g)
	}
	return nil
}

func (p post) measure(ctx context.Context, plan plan) (g Gate, err error) {
	g = Gate{Name: p.name, Says: p.says}
	l, err := lab.New("srv", "cli", "foe")
	if err != nil {
		return g, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	bpffs, unmount, err := lab.MountBPF()
	if err != nil {
		return g, err
	}
	defer func() { err = errors.Join(err, unmount()) }()
	dir, err := os.MkdirTemp("", "exact-")
	if err != nil {
		return g, err
	}
	defer os.RemoveAll(dir)
	s := &stage{srv: l.Host("srv"), cli: l.Host("cli"), foe: l.Host("foe"), dir: dir, state: filepath.Join(bpffs, "state"), plan: plan}
	if s.server, err = serve(s.srv, port); err != nil {
		return g, err
	}
	defer s.server.stop()
	lower, err := p.raise(ctx, s)
	if err != nil {
		return g, err
	}
	defer func() { err = errors.Join(err, lower()) }()

	to := netip.AddrPortFrom(s.srv.Addr4, p.port)
	for _, part := range []struct {
		name string
		run  func(context.Context, netip.AddrPort, *Gate) error
	}{{"bursts", s.bursts}, {"churn", s.churn}, {"flood", s.flood}} {
		fmt.Fprintf(os.Stderr, "%s: %s\n", p.name, part.name)
		if err := part.run(ctx, to, &g); err != nil {
			return g, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return g, nil
}
