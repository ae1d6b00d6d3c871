package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"headgate/pkg/api"
	"headgate/pkg/config"
	"headgate/pkg/status"
)

// asking are the flags of a command that asks a running agent.
type asking struct {
	listen string
	output string
}

func (a *asking) register(cmd *cobra.Command) {
	a.registerListen(cmd)
	cmd.Flags().StringVarP(&a.output, "output", "o", "text", "text or json")
	completeWords(cmd, "output", []string{"text", "json"})
}

func (a *asking) registerListen(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.listen, "listen", listenDefault(), "`address` that the agent serves on")
}

func (a *asking) check() error {
	if a.output != "text" && a.output != "json" {
		return usageError{fmt.Errorf("--output: %q is neither text nor json", a.output)}
	}
	return nil
}

// targetsHelp says how the arguments of a command name those that it shows.
const targetsHelp = `
A target is PORT, in every scope, SCOPE/PORT (host/8080, netns:blue/8080), or the
NAME of a rule, for all of its ports.`

// status asks the agent, and leaves those targets that are named; where none is,
// all.
func (a *asking) status(ctx context.Context, names []string) (*status.Status, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	st, err := api.FetchStatus(ctx, a.listen)
	if err != nil {
		return nil, err
	}
	return st, only(st, names)
}

func (a *asking) json() bool { return a.output == "json" }

func writeIndented(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func listenDefault() string {
	c := config.Default()
	if text, _, ok := config.Environment(getenv)("listen"); ok {
		return text
	}
	return c.Listen
}
