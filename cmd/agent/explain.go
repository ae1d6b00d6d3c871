package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"headgate/pkg/api"
	"headgate/pkg/status"
)

func newExplainCmd() *cobra.Command {
	var asked asking
	var scope string
	cmd := &cobra.Command{
		Use:   "explain PORT",
		Short: "Say why the limit of a port is what it is",
		Long: `Explain says why the limit of a port is what it is: what was measured, what the
algorithm makes of it, when and why the limit changed last, what would raise it,
and who is refused. The numbers of the last step are at the end.`,
		Example: `  headgate explain 8080
  headgate explain 8080 -o json | jq .why`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completePorts,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := asked.check(); err != nil {
				return err
			}
			port, err := parsePort(args[0])
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

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, usageError{fmt.Errorf("%q is not a port, 1 to 65535", text)}
	}
	return uint16(n), nil
}
