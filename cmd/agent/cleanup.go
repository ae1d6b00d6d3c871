package main

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/spf13/cobra"

	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/loader"
)

func newCleanupCmd() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Detach and unpin everything that headgate left in the kernel",
		Long: `Cleanup detaches every program of headgate and removes its pinned maps, with or
without an agent having been shut down, and nothing of anybody else. It is
refused while an agent runs.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !filepath.IsAbs(dir) {
				return usageError{fmt.Errorf("--state: %q is not the absolute path of a directory", dir)}
			}
			n, err := agent.CleanUp(dir, slog.New(slog.DiscardHandler))
			if err != nil {
				return err
			}
			if n == 0 && errors.Is(loader.CheckState(dir), loader.ErrNotBPFFS) {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is on no BPF file system here, so nothing is attached from it; if the agent ran with other mounts (a container, ip netns exec), run this where it did\n", dir)
				return err
			}
			if n == 0 {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "nothing of headgate is attached from %s\n", dir)
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "detached %d programs of headgate and removed %s\n", n, dir)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "state", stateDefault(), "state `directory`, on a bpffs")
	return cmd
}

func stateDefault() string {
	c := config.Default()
	if text, _, ok := config.Environment(getenv)("state"); ok {
		return text
	}
	return c.State
}
