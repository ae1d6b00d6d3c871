package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func newManCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write the manual pages into a directory",
		Long: `Man writes a manual page for each command into a directory, which is made when it
is missing. Their date is that of SOURCE_DATE_EPOCH where that is set.`,
		Example: `  headgate man /usr/local/share/man/man1`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := args[0]
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // it would have today's date in each page
			header := &doc.GenManHeader{Title: "HEADGATE", Section: "1", Source: "headgate " + version, Manual: "headgate"}
			if err := doc.GenManTree(root, header, dir); err != nil {
				return fmt.Errorf("write manual pages: %w", err)
			}
			return nil
		},
	}
}
