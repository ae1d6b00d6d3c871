package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"headgate/pkg/api"
	"headgate/pkg/status"
)

// completeWords has a flag completed to one of a few words.
func completeWords(cmd *cobra.Command, flag string, words []string) {
	// An error is a flag that does not exist, which the tests would show.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// completePorts completes the first argument to the ports that the running agent
// protects. Without an agent there is nothing to complete.
func completePorts(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completeFrom(cmd, args, func(t *status.Target) []cobra.Completion {
		return []cobra.Completion{cobra.CompletionWithDesc(fmt.Sprint(t.Port), t.Rule+", "+t.Scope)}
	})
}

// completeTargets is the same for commands that know rules by their names, too.
func completeTargets(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completeFrom(cmd, args, func(t *status.Target) []cobra.Completion {
		return []cobra.Completion{
			cobra.CompletionWithDesc(fmt.Sprint(t.Port), t.Rule+", "+t.Scope),
			cobra.CompletionWithDesc(t.Rule, "rule"),
		}
	})
}

func completeFrom(cmd *cobra.Command, args []string, of func(*status.Target) []cobra.Completion) ([]cobra.Completion, cobra.ShellCompDirective) {
	const nothingElse = cobra.ShellCompDirectiveNoFileComp
	if len(args) > 0 {
		return nil, nothingElse
	}
	addr := listenDefault()
	if f := cmd.Flags().Lookup("listen"); f != nil {
		addr = f.Value.String()
	}
	st, err := api.FetchStatus(cmd.Context(), addr)
	if err != nil {
		return nil, nothingElse
	}
	var all []cobra.Completion
	for i := range st.Targets {
		for _, c := range of(&st.Targets[i]) {
			if !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	return all, nothingElse
}
