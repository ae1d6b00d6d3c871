package main

import (
	"errors"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"headgate/pkg/control"
	"headgate/pkg/status"
)

func newStatusCmd() *cobra.Command {
	var asked asking
	cmd := &cobra.Command{
		Use:   "status [TARGET ...]",
		Short: "Show each target as it is now",
		Long: `Status shows what is wrong, and then a line for each target, or for those that
are named: what is in flight and the limit, the mean time of a request now and
when none waits (baseline), how many finish a second, and how many were refused
since the target was first protected; in observe mode, would have been.
` + targetsHelp,
		Example: `  headgate status
  headgate status shop -o json | jq .targets[].limit`,
		ValidArgsFunction: completeTargets,
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := asked.status(cmd.Context(), args)
			if err != nil {
				return err
			}
			if asked.json() {
				return writeIndented(cmd.OutOrStdout(), st)
			}
			return st.WriteTable(cmd.OutOrStdout(), columns(cmd.OutOrStdout()))
		},
	}
	asked.register(cmd)
	return cmd
}

func parsePorts(args []string) ([]uint16, error) {
	var ports []uint16
	for _, a := range args {
		p, err := parsePort(a)
		if err != nil {
			return nil, err
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// only leaves the targets that are named in a status; where none is, all. A port
// stands for those of all scopes.
func only(st *status.Status, names []string) error {
	if len(names) == 0 {
		return nil
	}
	wanted := make(map[control.Name]bool)
	for _, name := range names {
		found, err := control.Find(st.Targets, nameOf, name)
		if err != nil && !errors.Is(err, control.ErrAmbiguous) {
			return err
		}
		for _, t := range found {
			wanted[nameOf(t)] = true
		}
	}
	st.Targets = slices.DeleteFunc(st.Targets, func(t status.Target) bool { return !wanted[nameOf(t)] })
	return nil
}

func nameOf(t status.Target) control.Name {
	return control.Name{Rule: t.Rule, Scope: t.Scope, Port: t.Port}
}

// columns are those of the terminal that something is written to; 0 where it is
// none, and nothing has to fit.
func columns(out io.Writer) int {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
		return width
	}
	return status.Width
}
