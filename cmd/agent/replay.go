package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"headgate/pkg/replay"
)

// maxReplay bounds the size of a file that replay reads into memory.
const maxReplay = 256 << 20

func newReplayCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "replay FILE",
		Short: "Feed recorded samples or arrivals through an algorithm",
		Long: `Replay reads a JSON object with the keys algorithm, params, columns and steps,
feeds each step through this program's implementation of the algorithm, and
writes the same object with the columns that it computed to stdout. Only the
input columns are needed; output columns that are there are replaced.

With - it reads from stdin. A file that is wrong is reported with its place,
and nothing is written.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return replayFile(args[0], cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

func replayFile(path string, stdin io.Reader, out io.Writer) error {
	in, name := stdin, "stdin"
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		in, name = f, path
	}
	text, err := io.ReadAll(io.LimitReader(in, maxReplay+1))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(text) > maxReplay {
		return fmt.Errorf("%s: more than %d MiB", name, maxReplay>>20)
	}
	if err := replay.Run(text, out); err != nil {
		return fmt.Errorf("%s:%w", name, err)
	}
	return nil
}
