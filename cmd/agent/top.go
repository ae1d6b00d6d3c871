package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

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
	var ascii bool
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
			m := top.New(cmd.Context(), remote{asked.listen}, time.Now)
			m.ASCII = ascii
			return m.Run(cmd.Context(), tea.WithInput(in), tea.WithOutput(out))
		},
	}
	asked.registerListen(cmd)
	cmd.Flags().BoolVar(&ascii, "ascii", false, "draw charts of plain characters (default: where the locale is not UTF-8)")
	cmd.PreRun = func(cmd *cobra.Command, _ []string) {
		if !cmd.Flags().Changed("ascii") {
			ascii = !unicodeLocale()
		}
	}
	return cmd
}

// unicodeLocale says whether the locale of locale(7) has more than ASCII; one
// that is not set, as in many containers, is taken to have.
func unicodeLocale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v, _ := getenv(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return true
}

// remote is an agent that is asked over HTTP.
type remote struct{ addr string }

func (r remote) Status(ctx context.Context) (*status.Status, error) {
	return api.FetchStatus(ctx, r.addr)
}

func (r remote) Explain(ctx context.Context, scope string, port uint16) (*explain.Explanation, error) {
	return api.FetchExplanation(ctx, r.addr, scope, port)
}
