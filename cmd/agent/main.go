// Command headgate limits the connections to listening TCP ports to what the
// services behind them can carry.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"headgate/internal/lab"
)

// Exit codes: what was asked for could not be done; what was asked for could
// not be understood.
const (
	exitFailed = 1
	exitUsage  = 2
)

// version is set by the linker.
var version = "development"

func main() {
	// The demo runs its server as a process of this program.
	if handled, code := lab.ServerMain(os.Args[1:]); handled {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes a command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRootCmd()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "headgate:", err)
	if usage := (usageError{}); errors.As(err, &usage) {
		fmt.Fprintf(stderr, "Try '%s --help'.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailed
}

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func newRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "headgate",
		Short: "Let into a service what it can carry",
		Long: `headgate stands in front of listening TCP ports of unmodified programs and lets
in only what they can carry: the kernel counts and times what is in flight on
each port, the agent makes a limit of it, and the kernel refuses what is over.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(
		newRunCmd(),
		newCheckCmd(),
		newStatusCmd(),
		newExplainCmd(),
		newEventsCmd(),
		newCleanupCmd(),
		newDemoCmd(),
		newReplayCmd(),
		newSimulateCmd(),
		newVersionCmd(),
	)
	for _, c := range append(root.Commands(), root) {
		check := c.Args
		c.Args = func(cmd *cobra.Command, args []string) error {
			if check == nil {
				return nil
			}
			if err := check(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		}
	}
	return root
}
