package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"headgate/pkg/api"
	"headgate/pkg/config"
)

func newStatusCmd() *cobra.Command {
	var addr, output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show each target as it is now",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return usageError{fmt.Errorf("--output: %q is neither text nor json", output)}
			}
			st, err := api.FetchStatus(cmd.Context(), addr)
			if err != nil {
				return err
			}
			if output == "json" {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(st)
			}
			return st.WriteTable(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&addr, "listen", listenDefault(), "`address` that the agent serves on")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func listenDefault() string {
	c := config.Default()
	if text, _, ok := config.Environment(getenv)("listen"); ok {
		return text
	}
	return c.Listen
}
