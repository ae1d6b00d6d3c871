package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"headgate/pkg/api"
	"headgate/pkg/control"
	"headgate/pkg/status"
)

func newExplainCmd() *cobra.Command {
	var asked asking
	var scope string
	cmd := &cobra.Command{
		Use:   "explain TARGET",
		Short: "Say why the limit of a target is what it is",
		Long: `Explain says why the limit of a target is what it is: what was measured, what the
algorithm makes of it, when and why the limit changed last, what would raise it,
and who is refused. The numbers of the last step are at the end.

A target is PORT, SCOPE/PORT (host/8080, netns:blue/8080), or the NAME of a rule
that has one.`,
		Example: `  headgate explain 8080
  headgate explain 8080 -o json | jq .why`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := asked.check(); err != nil {
				return err
			}
			port, err := parsePort(args[0])
			if _, nan := strconv.Atoi(args[0]); nan != nil && scope == "" {
				scope, port, err = theOnly(cmd.Context(), asked.listen, args[0])
			}
			if err != nil {
				return err
			}
			e, err := api.FetchExplanation(cmd.Context(), asked.listen, scope, port)
			if err != nil {
				return err
			}
			if asked.json() {
				return writeIndented(cmd.OutOrStdout(), e)
			}
			return e.WriteText(cmd.OutOrStdout(), status.Width)
		},
	}
	asked.register(cmd)
	cmd.Flags().StringVar(&scope, "scope", "", "`scope` of the port, where several have it: host, netns:NAME")
	return cmd
}

// theOnly returns where the only target is that a name stands for.
func theOnly(ctx context.Context, addr, name string) (scope string, port uint16, err error) {
	st, err := api.FetchStatus(ctx, addr)
	if err != nil {
		return "", 0, err
	}
	found, err := control.Find(st.Targets, nameOf, name)
	if err != nil {
		return "", 0, err
	}
	if len(found) > 1 {
		var places []string
		for _, t := range found {
			places = append(places, nameOf(t).String())
		}
		return "", 0, fmt.Errorf("%w has the name %s: say which, %s", control.ErrAmbiguous, name, control.Either(places))
	}
	return found[0].Scope, found[0].Port, nil
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, usageError{fmt.Errorf("%q is not a port, 1 to 65535", text)}
	}
	return uint16(n), nil
}
