package main

import (
	"github.com/spf13/cobra"
)

// completeWords has a flag completed to one of a few words.
func completeWords(cmd *cobra.Command, flag string, words []string) {
	// An error is a flag that does not exist, which the tests would show.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}
