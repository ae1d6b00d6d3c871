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
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"headgate/internal/lab"
	"headgate/pkg/config"
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
	root := newRootCmd(stdout, stderr)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if cmd.Name() == "run" { // an agent ends whoever reads why, and can be started again
		last := newLines(stderr, func(int64) error { return nil })
		defer last.Close()
		stderr = last
	}
	fmt.Fprintln(stderr, "headgate:", err)
	if usage := (usageError{}); errors.As(err, &usage) || badFlag(err) {
		fmt.Fprintf(stderr, "Try '%s --help'.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailed
}

// badFlag says whether an error of the configuration is one of a flag's value.
func badFlag(err error) bool {
	var all config.Errors
	if !errors.As(err, &all) {
		return false
	}
	return slices.ContainsFunc(all, func(e *config.Error) bool { return e.Line == 0 && strings.HasPrefix(e.File, "-") })
}

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func newRootCmd(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "headgate",
		Short: "Let into a service what it can carry",
		Long: `headgate stands in front of listening TCP ports of unmodified programs and lets
in only what they can carry: the kernel counts and times what is in flight on
each port, the agent makes a limit of it, and the kernel refuses what is over.

The exit code is 0 when what was asked for was done, 1 when it could not be, and
2 when the command line could not be understood.`,
		Version:                    version,
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
		Args:                       knownCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(stdout) // completion asks for it when it is made
	root.SetErr(stderr)
	root.SetVersionTemplate(versionText())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{flagError(err)} })
	root.AddCommand(
		newRunCmd(),
		newCheckCmd(),
		newStatusCmd(),
		newTopCmd(),
		newExplainCmd(),
		newEventsCmd(),
		newLimitCmd(),
		newModeCmd(),
		newExemptCmd(),
		newReloadCmd(),
		newDoctorCmd(),
		newCleanupCmd(),
		newDemoCmd(),
		newReplayCmd(),
		newSimulateCmd(),
		newManCmd(),
		newVersionCmd(),
	)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("completion") // not for root alone, which has children
	tellUsageErrors(root)
	return root
}

// flagError says what a flag takes, where the error of its parser does not.
func flagError(err error) error {
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) && bad.GetFlag().Value.Type() == "duration" {
		return fmt.Errorf("--%s: %q is not a time and its unit, such as 500ms, 10s, 5m or 1h30m", bad.GetFlag().Name, bad.GetValue())
	}
	return err
}

// tellUsageErrors makes what is wrong with arguments errors of usage.
func tellUsageErrors(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		}
	}
	if c.HasSubCommands() && !c.Runnable() {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := knownCommand(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		}
		c.RunE = func(cmd *cobra.Command, _ []string) error {
			var names []string
			for _, child := range cmd.Commands() {
				names = append(names, child.Name())
			}
			return usageError{fmt.Errorf("which one: %s?", strings.Join(names, ", "))}
		}
	}
	for _, child := range c.Commands() {
		tellUsageErrors(child)
	}
}

// knownCommand refuses what is no command, and names one that is near.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(near, " or "))
	}
	return err
}
