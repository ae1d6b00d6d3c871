package main

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"headgate/pkg/controller"
	"headgate/pkg/sim"
)

const simulateLong = `Simulate a server under an algorithm, without touching any port.

A scenario is a server (workers, service time and its distribution, contention,
slow-downs), who calls on it (open-loop arrivals, clients in a closed loop,
retries), and the gate between them. It comes from flags or from a YAML file;
flags that are given override the file. The same seed is the same run.`

// simulateOptions are what the flags set beside the scenario itself.
type simulateOptions struct {
	file   string
	output string
	best   bool
	set    string // of scenarios to compare all algorithms on
	seeds  int
	limits map[string]*int
}

// newSimulateCmd returns the simulate command.
func newSimulateCmd() *cobra.Command {
	var flags sim.File
	o := simulateOptions{output: "text", limits: map[string]*int{}}
	cmd := &cobra.Command{
		Use:   "simulate [--scenario FILE] [flags]",
		Short: "Simulate a server under an algorithm",
		Long:  simulateLong,
		Example: `  headgate simulate --workers 16 --service 20ms --capacity 2
  headgate simulate --workers 8 --clients 200 --think 100ms --algorithm gradient2
  headgate simulate --scenario overload.yaml -o svg > overload.svg
  headgate simulate --compare -o markdown`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.set != "" {
				return compare(cmd, o)
			}
			return simulate(cmd, flags, o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.file, "scenario", "", "read the scenario from this YAML file (- for standard input)")
	f.StringVarP(&o.output, "output", "o", "text", "text, json or svg; of --compare text, json or markdown")
	f.BoolVar(&o.best, "best", false, "also search for the best constant limit, and compare")
	f.StringVar(&o.set, "compare", "", "instead compare all algorithms with the best constant limit on a set of scenarios: report, or tuning")
	f.Lookup("compare").NoOptDefVal = "report"
	f.IntVar(&o.seeds, "seeds", 5, "runs of each scenario of --compare")
	f.StringVar(&flags.Limit.Algorithm, "algorithm", "guarded", "the algorithm")
	for _, name := range []string{"initial", "min", "max"} {
		o.limits[name] = f.Int(name, 0, name+" limit, in units (default: the algorithm's own)")
	}
	f.DurationVar(&flags.Duration, "duration", time.Minute, "simulated time")
	f.DurationVar(&flags.From, "from", 0, "count arrivals from this time on")
	f.Uint64Var(&flags.Seed, "seed", 1, "seed of everything that is left to chance")
	f.DurationVar(&flags.Tick, "window", 100*time.Millisecond, "time between decisions")
	f.IntVar(&flags.Server.Workers, "workers", 16, "units that the server works on at once")
	f.DurationVar(&flags.Server.Service, "service", 20*time.Millisecond, "mean service time")
	f.StringVar(&flags.Server.Distribution, "distribution", "exponential", "of the service time: constant, exponential, lognormal or pareto")
	f.Float64Var(&flags.Server.Shape, "shape", 0, "sigma of lognormal (default 1), alpha of pareto (default 1.5)")
	f.StringVar(&flags.Server.Discipline, "discipline", "fifo", "fifo, or sharing: all units share the workers")
	f.Float64Var(&flags.Server.Contention.Factor, "contention", 0, "service time grows by this for each unit in flight a worker above one")
	f.Float64Var(&flags.Load.Rate, "rate", 0, "arrivals a second, in open loop")
	f.Float64Var(&flags.Load.Capacity, "capacity", 0, "arrivals in multiples of what the server can finish (default 2 when nothing else arrives)")
	f.Float64Var(&flags.Load.Batch, "batch", 1, "mean number of units that arrive at once")
	f.IntVar(&flags.Clients.Count, "clients", 0, "clients in closed loop")
	f.DurationVar(&flags.Clients.Think, "think", 0, "mean time that a client thinks between units")
	f.IntVar(&flags.Retry.Times, "retries", 0, "attempts after a rejection")
	f.DurationVar(&flags.Retry.After, "retry-after", 100*time.Millisecond, "pause before an attempt")
	f.StringVar(&flags.Gate.Reject, "reject", "reset", "reset, or drop: the client sends its SYN again after 1, 3 and 7 s")
	f.DurationVar(&flags.Gate.Hold.MaxWait, "max-wait", 0, "hold what is over the limit for so long")
	f.StringVar(&flags.Gate.Hold.Order, "order", "fifo", "of held units: fifo or lifo")
	return cmd
}

func simulate(cmd *cobra.Command, flags sim.File, o simulateOptions) error {
	write, ok := map[string]func(io.Writer, report) error{"text": writeText, "json": func(w io.Writer, r report) error { return writeIndented(w, r) }, "svg": writeSVG}[o.output]
	if !ok {
		return usageError{fmt.Errorf("--output: %q is none of text, json, svg", o.output)}
	}
	file, err := scenarioOf(cmd, flags, o)
	if err != nil {
		return err
	}
	algorithm, err := file.Limit.New(file.Seed)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	result, err := sim.Run(ctx, file.Scenario, algorithm, progress(cmd.ErrOrStderr(), time.Now, file.Duration))
	if err != nil {
		return err
	}
	r := report{Name: file.Name, Algorithm: file.Limit.Algorithm, Seed: file.Seed, Result: result, Terms: map[string]float64{}}
	for _, t := range algorithm.Terms() {
		r.Terms[t.Name] = t.Value
	}
	if o.best {
		fmt.Fprintln(cmd.ErrOrStderr(), "searching for the best constant limit")
		limit, good, err := sim.BestStatic(ctx, file.Scenario, []uint64{file.Seed})
		if err != nil {
			return err
		}
		r.Best = &bestStatic{Limit: limit, Ratio: float64(result.Good) / max(good, 1)}
	}
	return write(cmd.OutOrStdout(), r)
}

// scenarioOf puts together the defaults, the file and the flags that were
// given, the later over the earlier.
func scenarioOf(cmd *cobra.Command, flags sim.File, o simulateOptions) (sim.File, error) {
	for name, value := range o.limits {
		if cmd.Flags().Changed(name) {
			*map[string]**int{"initial": &flags.Limit.Initial, "min": &flags.Limit.Min, "max": &flags.Limit.Max}[name] = value
		}
	}
	file := flags
	if o.file == "" {
		if file.Load.Rate == 0 && file.Load.Capacity == 0 && file.Clients.Count == 0 {
			file.Load.Capacity = 2
		}
		file.Scenario = file.Scenario.WithDefaults()
		if err := file.Validate(); err != nil {
			return file, usageError{err} // all of it is from flags
		}
		return file, nil
	}
	file = sim.File{Limit: sim.Limit{Algorithm: "guarded"}}
	name, in := "standard input", cmd.InOrStdin()
	if o.file != "-" {
		f, err := os.Open(o.file)
		if err != nil {
			return file, err
		}
		defer f.Close()
		name, in = o.file, f
	}
	if err := file.ReadFile(name, in); err != nil {
		return file, err
	}
	override(cmd, &file, flags)
	file.Scenario = file.Scenario.WithDefaults()
	return file, file.Validate()
}

// override copies into to what flags were given for.
func override(cmd *cobra.Command, to *sim.File, from sim.File) {
	given := cmd.Flags().Changed
	for name, set := range map[string]func(){
		"algorithm": func() { // which has settings of its own
			p := &to.Limit.Params
			to.Limit = sim.Limit{Algorithm: from.Limit.Algorithm, Params: controller.Params{Initial: p.Initial, Min: p.Min, Max: p.Max}}
		},
		"duration":     func() { to.Duration = from.Duration },
		"from":         func() { to.From = from.From },
		"seed":         func() { to.Seed = from.Seed },
		"window":       func() { to.Tick = from.Tick },
		"workers":      func() { to.Server.Workers = from.Server.Workers },
		"service":      func() { to.Server.Service = from.Server.Service },
		"distribution": func() { to.Server.Distribution = from.Server.Distribution },
		"shape":        func() { to.Server.Shape = from.Server.Shape },
		"discipline":   func() { to.Server.Discipline = from.Server.Discipline },
		"contention":   func() { to.Server.Contention.Factor = from.Server.Contention.Factor },
		"rate":         func() { to.Load.Rate, to.Load.Capacity = from.Load.Rate, 0 },
		"capacity":     func() { to.Load.Capacity, to.Load.Rate = from.Load.Capacity, 0 },
		"batch":        func() { to.Load.Batch = from.Load.Batch },
		"clients":      func() { to.Clients.Count = from.Clients.Count },
		"think":        func() { to.Clients.Think = from.Clients.Think },
		"retries":      func() { to.Retry.Times = from.Retry.Times },
		"retry-after":  func() { to.Retry.After = from.Retry.After },
		"reject":       func() { to.Gate.Reject = from.Gate.Reject },
		"max-wait":     func() { to.Gate.Hold.MaxWait = from.Gate.Hold.MaxWait },
		"order":        func() { to.Gate.Hold.Order = from.Gate.Hold.Order },
	} {
		if given(name) {
			set()
		}
	}
	for name, pair := range map[string][2]**int{
		"initial": {&to.Limit.Initial, &from.Limit.Initial},
		"min":     {&to.Limit.Min, &from.Limit.Min},
		"max":     {&to.Limit.Max, &from.Limit.Max},
	} {
		if given(name) {
			*pair[0] = *pair[1]
		}
	}
}

// progress says every two seconds how far a run is; short runs say nothing.
func progress(w io.Writer, clock func() time.Time, total time.Duration) func(time.Duration) {
	say := sparing(w, clock)
	return func(done time.Duration) { say("simulated %v of %v\n", done.Round(time.Second), total) }
}

// sparing writes at most every two seconds, and not at once.
func sparing(w io.Writer, clock func() time.Time) func(format string, args ...any) {
	last := clock()
	return func(format string, args ...any) {
		if now := clock(); now.Sub(last) >= 2*time.Second {
			last = now
			fmt.Fprintf(w, format, args...)
		}
	}
}

// report is what a simulation found, as -o json prints it.
type report struct {
	Name      string `json:"name,omitempty"`
	Algorithm string `json:"algorithm"`
	Seed      uint64 `json:"seed"`
	*sim.Result
	Best  *bestStatic        `json:"best_constant,omitempty"`
	Terms map[string]float64 `json:"terms"` // of the algorithm, at the end
}

type bestStatic struct {
	Limit int     `json:"limit"`
	Ratio float64 `json:"goodput_ratio"` // of the algorithm to it
}

func writeSVG(w io.Writer, r report) error {
	if r.Scenario.Name == "" {
		r.Scenario.Name = fmt.Sprintf("%s, %d workers at %v", r.Algorithm, r.Scenario.Server.Workers, r.Scenario.Server.Service)
	}
	return r.WriteSVG(w)
}

func writeText(w io.Writer, r report) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	share := func(n int) float64 { return 100 * float64(n) / float64(max(r.Offered, 1)) }
	if r.Name != "" {
		fmt.Fprintf(t, "scenario\t%s\n", r.Name)
	}
	fmt.Fprintf(t, "algorithm\t%s\n", r.Algorithm)
	fmt.Fprintf(t, "goodput\t%.1f/s\n", r.Goodput)
	fmt.Fprintf(t, "offered\t%d\n", r.Offered)
	fmt.Fprintf(t, "rejected\t%d (%.1f %%)\n", r.Rejected, share(r.Rejected))
	fmt.Fprintf(t, "late\t%d (%.1f %%)\n", r.Late, share(r.Late))
	fmt.Fprintf(t, "p50\t%.4g s (%.1f service times)\n", r.P50, r.P50Service)
	fmt.Fprintf(t, "p99\t%.4g s (%.1f service times)\n", r.P99, r.P99Service)
	if r.Scenario.Gate.Reject == "drop" || r.Scenario.Retry.Times > 0 {
		fmt.Fprintf(t, "p99 from the first attempt\t%.4g s\n", r.ClientP99)
	}
	if r.Best != nil {
		fmt.Fprintf(t, "best constant limit\t%d; goodput is %.1f %% of it\n", r.Best.Limit, 100*r.Best.Ratio)
	}
	if err := t.Flush(); err != nil {
		return err
	}

	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "second\tlimit\tin flight\toffered/s\tgood/s\trejected/s\t")
	const rows = 20
	by := max(1, (len(r.Series)+rows-1)/rows)
	for i := 0; i < len(r.Series); i += by {
		group := r.Series[i:min(i+by, len(r.Series))]
		length := float64(len(group)) * r.Step
		offered, good, rejected, inFlight := 0, 0, 0, 0
		for _, p := range group {
			offered, good, rejected = offered+p.Offered, good+p.Good, rejected+p.Rejected
			inFlight = max(inFlight, p.InFlight)
		}
		fmt.Fprintf(t, "%.4g\t%d\t%d\t%.1f\t%.1f\t%.1f\t\n", group[0].At, group[len(group)-1].Refusing, inFlight,
			float64(offered)/length, float64(good)/length, float64(rejected)/length)
	}
	return t.Flush()
}
