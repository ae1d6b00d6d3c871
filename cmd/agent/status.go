package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"headgate/pkg/api"
	"headgate/pkg/status"
)

func newStatusCmd() *cobra.Command {
	var asked asking
	cmd := &cobra.Command{
		Use:   "status [PORT ...]",
		Short: "Show each target as it is now",
		Long: `Status shows what is wrong, and then a line for each target, or for those with the
given ports: what is in flight and the limit, the mean time of a request now and
when none waits (baseline), how many finish a second, and how many were refused
since the target was first protected; in observe mode, would have been.`,
		ValidArgsFunction: completePorts,
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := asked.check(); err != nil {
				return err
			}
			ports, err := parsePorts(args)
			if err != nil {
				return err
			}
			st, err := api.FetchStatus(cmd.Context(), asked.listen)
			if err != nil {
				return err
			}
			if err := only(st, ports); err != nil {
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

func parsePorts(args []string) ([]uint16, error) {
	var ports []uint16
	for _, a := range args {
		p, err := parsePort(a)
		if err != nil {
			return nil, err
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// only leaves the targets with some ports in a status; without any, all.
func only(st *status.Status, ports []uint16) error {
	for _, p := range ports {
		if !slices.ContainsFunc(st.Targets, func(t status.Target) bool { return t.Port == p }) {
			return fmt.Errorf("port %d: %w", p, api.ErrNoTarget)
		}
	}
	if len(ports) > 0 {
		st.Targets = slices.DeleteFunc(st.Targets, func(t status.Target) bool { return !slices.Contains(ports, t.Port) })
	}
	return nil
}
