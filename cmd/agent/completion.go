package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"headgate/pkg/api"
)

// completeWords has a flag completed to one of a few words.
func completeWords(cmd *cobra.Command, flag string, words []string) {
	// An error is a flag that does not exist, which the tests would show.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// completeTargets completes the first argument to what the targets of the running
// agent can be called by. Without an agent there is nothing to complete.
func completeTargets(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
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
		t := &st.Targets[i]
		for _, c := range []cobra.Completion{
			cobra.CompletionWithDesc(fmt.Sprint(t.Port), t.Rule+", "+t.Scope),
			cobra.CompletionWithDesc(t.Rule, "rule"),
		} {
			if !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	return all, nothingElse
}
