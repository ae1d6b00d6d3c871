package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"headgate/pkg/api"
)

// completeWords has a flag completed to one of a few words.
func completeWords(cmd *cobra.Command, flag string, words []string) {
	// An error is a flag that does not exist, which the tests would show.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// completePorts completes the first argument to the ports that the running agent
// protects. Without an agent there is nothing to complete.
func completePorts(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
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
	var ports []cobra.Completion
	for _, t := range st.Targets {
		ports = append(ports, cobra.CompletionWithDesc(fmt.Sprint(t.Port), t.Rule+", "+t.Scope))
	}
	return ports, nothingElse
}
