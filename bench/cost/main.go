// Command bench measures what headgate costs. Ratios are medians of toggled
// pairs within one run, since the speed of a machine wanders; the results go
// to a JSON file, and a table to standard output. It needs root, makes its own
// network namespaces and ends what it starts.
//
//	go run ./bench/cost [-short] [-only programs,churn,kept-alive,light,refusal,agent,scale] [-o bench/results/cost.json]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"headgate/bench/internal/report"
	"headgate/internal/lab"
)

func main() {
	if handled, code := lab.ServerMain(os.Args[1:]); handled {
		os.Exit(code)
	}
	if len(os.Args) == 2 && os.Args[1] == acceptVerb {
		if err := acceptAndClose(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 2 && (os.Args[1] == holdServerVerb || os.Args[1] == holdClientVerb) {
		if err := holdMain(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	short := flag.Bool("short", false, "fewer pairs, and less of them: under two minutes, for a first look")
	only := flag.String("only", "", "`parts` to measure, with commas: programs, churn, kept-alive, light, refusal, agent, scale; the results of the others are kept")
	out := flag.String("o", "bench/results/cost.json", "`file` for the results; a picture goes beside it")
	again := flag.Bool("draw", false, "only draw the results again")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	err := run(ctx, *short, *again, *only, *out)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// Report is the file of results.
type Report struct {
	Machine  report.Machine `json:"machine"`
	Programs []Program      `json:"programs"`
	Ratios   []Ratio        `json:"ratios"`

	Light  []Light     `json:"light"`
	Agents []AgentCost `json:"agents"`
	Scale  []Scale     `json:"scale"`
}

// part is one of those that can be measured by themselves.
type part struct {
	name, what string
	run        func(*bench, context.Context, *Report) error
}

var parts = []part{
	{"programs", "time of each program", (*bench).programs},
	{"churn", "connect and close", (*bench).churn},
	{"kept-alive", "requests on kept-alive connections", (*bench).keepAlive},
	{"light", "requests at a rate that keeps nobody waiting", (*bench).light},
	{"refusal", "time to a refusal", (*bench).refusal},
	{"agent", "the agent itself", (*bench).agents},
	{"scale", "many connections and many networks", (*bench).scale},
}

func run(ctx context.Context, short, again bool, only, out string) (err error) {
	var r Report
	chosen, err := choose(only)
	if err != nil {
		return err
	}
	picture := strings.TrimSuffix(out, ".json") + ".png"
	if only != "" || again {
		if err := report.Read(out, &r); err != nil {
			return err
		}
	}
	if again {
		return drawPicture(r, picture)
	}
	b := bench{short: short, pairs: 24, phase: 500 * time.Millisecond, cpus: runtime.NumCPU(), held: make(map[netip.Addr]bool)}
	if short {
		b.pairs, b.phase = 6, 300*time.Millisecond
	}
	if b.lab, err = lab.New("srv", "cli"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.lab.Close()) }()
	b.srv, b.cli = b.lab.Host("srv"), b.lab.Host("cli")

	bpffs, unmount, err := lab.MountBPF()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unmount()) }()
	b.state = filepath.Join(bpffs, "state")

	r.Machine = report.ThisMachine("HAProxy", "nft", "nginx")
	for _, p := range chosen {
		fmt.Fprintf(os.Stderr, "measuring: %s\n", p.what)
		if err := p.run(&b, ctx, &r); err != nil {
			return fmt.Errorf("%s: %w", p.what, err)
		}
	}
	if err := report.Write(out, r); err != nil {
		return err
	}
	if err := drawPicture(r, picture); err != nil {
		return err
	}
	return r.table(os.Stdout)
}

func choose(names string) ([]part, error) {
	if names == "" {
		return parts, nil
	}
	var chosen []part
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only %s: no such part", name)
		}
		chosen = append(chosen, parts[i])
	}
	return chosen, nil
}

// put adds ratios; one that was measured before goes.
func (r *Report) put(ratios ...Ratio) {
	for _, q := range ratios {
		if i := slices.IndexFunc(r.Ratios, func(old Ratio) bool { return old.Name == q.Name }); i >= 0 {
			r.Ratios[i] = q
		} else {
			r.Ratios = append(r.Ratios, q)
		}
	}
}

func (r Report) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "program\twhile\tns per run\truns\tgoal\n")
	for _, p := range r.Programs {
		fmt.Fprintf(t, "%s\t%s\t%.0f\t%d\t%s\n", p.Name, p.While, p.Nanoseconds, p.Runs, goal(p.Goal, "<= %.0f"))
	}
	fmt.Fprintf(t, "\t\t\t\t\n")
	fmt.Fprintf(t, "ratio\tmedian\tquartiles\tpairs\tgoal\n")
	for _, q := range r.Ratios {
		fmt.Fprintf(t, "%s\t%.3f\t%.3f to %.3f\t%d\t%s\n", q.Name, q.Median, q.Lower, q.Upper, q.Pairs, goal(q.Goal, ">= %.2f"))
	}
	fmt.Fprintf(t, "\t\t\t\t\n")
	fmt.Fprintf(t, "requests, 1000 a second, with\tp50\tp99\tCPU of each\t\n")
	for _, l := range r.Light {
		fmt.Fprintf(t, "%s\t%.0f us\t%.0f us\t%.0f us\t\n", l.With, l.P50, l.P99, l.CPU)
	}
	fmt.Fprintf(t, "\t\t\t\t\n")
	fmt.Fprintf(t, "agent with targets\tof a core\tresident\tmaps\tgoals\n")
	for _, a := range r.Agents {
		goals := ""
		if a.CPUGoal > 0 {
			goals = fmt.Sprintf("<= %.0f %%, <= %.0f MiB", 100*a.CPUGoal, a.RSSGoal)
		}
		fmt.Fprintf(t, "%d\t%.1f %%\t%.0f MiB\t%.0f MiB\t%s\n", a.Targets, 100*a.CPU, a.ResidentM, a.MapsM, goals)
	}
	fmt.Fprintf(t, "\t\t\t\t\n")
	fmt.Fprintf(t, "at a full port, with\trefused SYN\tof a core\tresident\tmaps\n")
	for _, s := range r.Scale {
		fmt.Fprintf(t, "%d %s\t%.0f ns\t%.1f %%\t%.0f MiB\t%.0f MiB\n", s.Number, s.What, s.Refusal, 100*s.CPU, s.Resident, s.Maps)
	}
	return t.Flush()
}

func goal(g float64, format string) string {
	if g == 0 {
		return ""
	}
	return fmt.Sprintf(format, g)
}
