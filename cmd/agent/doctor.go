package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"headgate/pkg/api"
	"headgate/pkg/doctor"
	"headgate/pkg/status"
)

func newDoctorCmd() *cobra.Command {
	var asked asking
	var state string
	var ports []string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out whether this host can be protected, and is",
		Long: `Doctor looks at what headgate needs of this host and its kernel, at what stands in
its way, and at the agent that may be running, and says what to do about what it
finds. It changes nothing. Without root it says what it could not see.

The exit code is 1 when something does not work, and 0 also with warnings.`,
		Example: `  sudo headgate doctor
  sudo headgate doctor -p 8080 -o json | jq '.[] | select(.state != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := asked.check(); err != nil {
				return err
			}
			wanted, err := parsePorts(ports)
			if err != nil {
				return err
			}
			findings := doctor.Examine(cmd.Context(), doctor.Options{
				StateDir: state,
				Ports:    wanted,
				Ask: func(ctx context.Context) (*status.Status, error) {
					st, err := api.FetchStatus(ctx, asked.listen)
					if errors.Is(err, api.ErrNoAgent) {
						return nil, doctor.ErrNoAgent
					}
					return st, err
				},
			})
			if asked.json() {
				err = writeIndented(cmd.OutOrStdout(), findings)
			} else {
				err = doctor.WriteText(cmd.OutOrStdout(), findings)
			}
			if err == nil && doctor.Troubled(findings) {
				err = doctor.ErrTrouble
			}
			return err
		},
	}
	asked.register(cmd)
	cmd.Flags().StringVar(&state, "state", stateDefault(), "state `directory` of the agent")
	cmd.Flags().StringArrayVarP(&ports, "port", "p", nil, "a `port` that is to be protected; may be repeated")
	return cmd
}
