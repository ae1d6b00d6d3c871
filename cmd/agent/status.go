package main

import (
	"github.com/spf13/cobra"

	"headgate/pkg/api"
)

func newStatusCmd() *cobra.Command {
	var asked asking
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show each target as it is now",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := asked.check(); err != nil {
				return err
			}
			st, err := api.FetchStatus(cmd.Context(), asked.listen)
			if err != nil {
				return err
			}
			if asked.json() {
				return writeIndented(cmd.OutOrStdout(), st)
			}
			return st.WriteTable(cmd.OutOrStdout())
		},
	}
	asked.register(cmd)
	return cmd
}
