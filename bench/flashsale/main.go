// Command flashsale tells the story that headgate was made for: an ordinary
// service with a pool of threads in front of a PostgreSQL; the sale begins and
// the database stalls, at the same time. What is left of the service, with each
// of several gates in front of it?
//
//	go run ./bench/flashsale [-short] [-o bench/results]
//
// It needs root, PostgreSQL, gunicorn with psycopg2, HAProxy and nft, makes its
// own network namespaces and ends what it starts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"headgate/bench/internal/report"
	"headgate/internal/lab"
)

func main() {
	if handled, code := lab.ServerMain(os.Args[1:]); handled {
		os.Exit(code)
	}
	short := flag.Bool("short", false, "a shorter story, for a first look")
	out := flag.String("o", "bench/results", "`directory` for flashsale.json and flashsale.png")
	draw := flag.Bool("draw", false, "only draw flashsale.json again")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	err := run(ctx, *short, *draw, *out)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "flashsale:", err)
		os.Exit(1)
	}
}

// Report is the file of results.
type Report struct {
	Machine report.Machine `json:"machine"`
	Story   Story          `json:"story"`
	Gates   []Run          `json:"gates"`
}

func run(ctx context.Context, short, draw bool, out string) error {
	file := filepath.Join(out, "flashsale.json")
	var r Report
	if draw {
		if err := report.Read(file, &r); err != nil {
			return err
		}
	} else {
		story := Story{Calm: 10, Sale: 30, After: 20, CalmRate: 0.6 * capacity, SaleRate: 1.5 * capacity, Capacity: capacity}
		if short {
			story.Calm, story.Sale, story.After = 5, 8, 7
		}
		r = Report{Machine: report.ThisMachine("HAProxy", "PostgreSQL", "gunicorn", "nft"), Story: story}
		if err := tell(ctx, &r); err != nil {
			return err
		}
		if err := report.Write(file, r); err != nil {
			return err
		}
	}
	if err := drawPicture(r, filepath.Join(out, "flashsale.png")); err != nil {
		return err
	}
	return r.table(os.Stdout)
}

// tell tells the story once with each gate.
func tell(ctx context.Context, r *Report) (err error) {
	l, err := lab.New("srv", "cli", "probe")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	bpffs, unmount, err := lab.MountBPF()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unmount()) }()
	dir, err := os.MkdirTemp("", "flashsale-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}

	srv := l.Host("srv")
	svc, err := startService(ctx, srv, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, svc.database.Stop()) }()
	probe := l.Host("probe").Addr4
	health, err := probe.Prefix(probe.BitLen())
	if err != nil {
		return err
	}
	s := &stage{srv: srv, dir: dir, state: filepath.Join(bpffs, "state"), health: health}
	for i, g := range posts {
		fmt.Fprintf(os.Stderr, "%d of %d: %s (%s), %.0f s\n", i+1, len(posts), g.Name, g.Says, r.Story.Seconds())
		played, err := r.Story.play(ctx, g, s, svc, l.Host("cli"), l.Host("probe"))
		if err != nil {
			return fmt.Errorf("%s: %w", g.Name, err)
		}
		r.Gates = append(r.Gates, played)
	}
	return nil
}

func (r Report) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "gate\tset to\tgoodput before\tin the sale\tanswered then\tp50, p99 of these\tafter\tback after\thealth checks failed\n")
	fmt.Fprintf(t, "\t\t/s\t/s\t/s\ts\t/s\ts\t\n")
	for _, g := range r.Gates {
		back := "never"
		if g.BackAfter >= 0 {
			back = fmt.Sprintf("%.0f", g.BackAfter)
		}
		fmt.Fprintf(t, "%s\t%s\t%.0f\t%.1f\t%.1f\t%.2f, %.2f\t%.0f\t%s\t%d of %d\n", g.Name, g.Says, g.Before.Goodput(),
			g.During.Goodput(), float64(g.During.Answered)/g.During.Seconds, g.During.P50Seconds, g.During.P99Seconds, g.After.Goodput(), back, g.HealthFailed, g.HealthChecks)
	}
	return t.Flush()
}
