package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"headgate/pkg/api"
	"headgate/pkg/events"
)

func newEventsCmd() *cobra.Command {
	var asked asking
	var follow bool
	var types []string
	cmd := &cobra.Command{
		Use:   "events [-f]",
		Short: "Show who was refused, and what else happened",
		Long: `Events shows what the agent has kept of what happened lately, oldest first: a
sample of those who were refused and why, of those who waited in vain, changes of
limits and the reason, trouble with hooks and reloads. With -f it goes on with
what happens until it is interrupted.

In the kernel at most four refusals of each target in each window are told of;
what is left out is counted. -o json writes an object a line.`,
		Example: `  headgate events -f
  headgate events -o json | jq 'select(.type == "rejection") | .client'
  headgate events -f --type limit_change`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := asked.check(); err != nil {
				return err
			}
			show, err := eventFilter(types)
			if err != nil {
				return err
			}
			write := eventWriter(cmd.OutOrStdout(), asked.json())
			return api.FollowEvents(cmd.Context(), asked.listen, follow, func(e events.Event) error {
				if !show(e) {
					return nil
				}
				return write(e)
			})
		},
	}
	asked.register(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens")
	cmd.Flags().StringSliceVar(&types, "type", nil, "only events of these `types`: "+typeNames())
	completeWords(cmd, "type", strings.Split(typeNames(), ", "))
	return cmd
}

func typeNames() string {
	var names []string
	for _, t := range events.Types() {
		names = append(names, string(t))
	}
	return strings.Join(names, ", ")
}

// eventFilter returns whether an event is of one of the types; of no types, all are.
func eventFilter(types []string) (func(events.Event) bool, error) {
	for _, t := range types {
		if !slices.Contains(events.Types(), events.Type(t)) {
			return nil, usageError{fmt.Errorf("--type: %q is none of %s", t, typeNames())}
		}
	}
	return func(e events.Event) bool {
		// That this reader missed some is never hidden.
		return len(types) == 0 || e.Type == events.Missed || slices.Contains(types, string(e.Type))
	}, nil
}

func eventWriter(w io.Writer, asJSON bool) func(events.Event) error {
	if asJSON {
		return func(e events.Event) error { return json.NewEncoder(w).Encode(e) }
	}
	return func(e events.Event) error {
		_, err := fmt.Fprintln(w, e.Text())
		return err
	}
}
