package main

import (
	"context"
	"errors"
	"os"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"headgate/pkg/api"
	"headgate/pkg/explain"
	"headgate/pkg/status"
	"headgate/pkg/top"
)

func newTopCmd() *cobra.Command {
	var asked asking
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the targets live",
		Long: `Top shows the targets of a running agent in the terminal, once a second: limit, in
flight and service time, now and in the last minute, what finishes and what is
refused. Enter shows one of them, with the reasons for its limit; ? the keys.

Colours are left out where the terminal has none, or NO_COLOR is set.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, isFile := cmd.InOrStdin().(*os.File)
			out, isFileToo := cmd.OutOrStdout().(*os.File)
			if !isFile || !isFileToo || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
				return errors.New("this is no terminal; `headgate status` shows the same once")
			}
			// What is wrong with the address is told before the screen is taken.
			if _, err := api.FetchStatus(cmd.Context(), asked.listen); err != nil {
				return err
			}
			return top.Run(cmd.Context(), remote{asked.listen}, tea.WithInput(in), tea.WithOutput(out))
		},
	}
	asked.registerListen(cmd)
	return cmd
}

// remote is an agent that is asked over HTTP.
type remote struct{ addr string }

func (r remote) Status(ctx context.Context) (*status.Status, error) {
	return api.FetchStatus(ctx, r.addr)
}

func (r remote) Explain(ctx context.Context, scope string, port uint16) (*explain.Explanation, error) {
	return api.FetchExplanation(ctx, r.addr, scope, port)
}
