package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"headgate/pkg/api"
	"headgate/pkg/config"
	"headgate/pkg/control"
	"headgate/pkg/status"
)

// targetHelp says how a command's argument names targets.
const targetHelp = `
A target is PORT, where only one scope has that port protected, SCOPE/PORT
(host/8080, netns:blue/8080), NAME:PORT of a rule, or its NAME for all of its
ports.`

// telling are the flags of a command that tells a running agent to do something.
type telling struct{ socket string }

func (t *telling) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.socket, "socket", socketDefault(), "unix socket of the agent, a `path`")
}

func socketDefault() string {
	if text, _, ok := config.Environment(getenv)("socket"); ok {
		return text
	}
	return config.Default().Socket
}

func newLimitCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "limit",
		Short: "Set a limit by hand, or have it computed again",
	}
	cmd.AddCommand(newLimitSetCmd(), newLimitClearCmd())
	return cmd
}

func newLimitSetCmd() *cobra.Command {
	var tell telling
	var r control.Limit
	var during time.Duration
	cmd := &cobra.Command{
		Use:   "set TARGET N",
		Short: "Set the limit of a target by hand",
		Long: `Set puts a limit in force at once, in place of the one that is computed, for the
given time or until it is cleared. All connections count, idle ones too. It is
kept when the configuration is reloaded, and not when the agent is restarted.
` + targetHelp,
		Example: `  headgate limit set 8080 50 --for 10m
  headgate limit set shop 0 --force      # refuse everybody`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseUint(args[1], 10, 63)
			if err != nil || n > control.MaxLimit {
				return usageError{fmt.Errorf("%q is not a limit, 0 to %d", args[1], control.MaxLimit)}
			}
			if cmd.Flags().Changed("for") && (during <= 0 || during > control.MaxFor) {
				return usageError{fmt.Errorf("--for: %v is not above 0s and up to %v", during, control.MaxFor)}
			}
			r.Target, r.Limit, r.ForSeconds = args[0], int(n), during.Seconds()
			answer, err := api.SetLimit(cmd.Context(), tell.socket, r)
			if err != nil {
				return err
			}
			return describe(cmd.OutOrStdout(), answer)
		},
	}
	tell.register(cmd)
	cmd.Flags().DurationVar(&during, "for", 0, "`time` after which the limit is computed again (default: until it is cleared)")
	cmd.Flags().BoolVar(&r.Force, "force", false, "allow a limit of 0, which refuses everybody")
	return cmd
}

func newLimitClearCmd() *cobra.Command {
	var tell telling
	cmd := &cobra.Command{
		Use:               "clear TARGET",
		Short:             "Have the limit of a target computed again",
		Long:              "Clear ends a limit that was set by hand; it is no error when none was.\n" + targetHelp,
		Example:           "  headgate limit clear 8080",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			answer, err := api.SetLimit(cmd.Context(), tell.socket, control.Limit{Target: args[0], Clear: true})
			if err != nil {
				return err
			}
			return describe(cmd.OutOrStdout(), answer)
		},
	}
	tell.register(cmd)
	return cmd
}

func newModeCmd() *cobra.Command {
	var tell telling
	cmd := &cobra.Command{
		Use:   "mode {observe|enforce} [TARGET]",
		Short: "Switch targets to observe, or back",
		Long: `Mode switches a target, or every one, while the agent runs. In observe everything
is counted and computed and nobody is refused; who waits at that moment is let
in. It is kept when the configuration is reloaded, until that says the same, and
not when the agent is restarted.
` + targetHelp,
		Example: `  headgate mode observe 8080
  headgate mode enforce`,
		Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return []cobra.Completion{"observe", "enforce"}, cobra.ShellCompDirectiveNoFileComp
			}
			return completeTargets(cmd, args[1:], text)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r := control.Mode{Mode: args[0]}
			if r.Mode != "observe" && r.Mode != "enforce" {
				return usageError{fmt.Errorf("%q is neither observe nor enforce", r.Mode)}
			}
			if len(args) == 2 {
				r.Target = args[1]
			}
			answer, err := api.SetModes(cmd.Context(), tell.socket, r)
			if err != nil {
				return err
			}
			return describe(cmd.OutOrStdout(), answer)
		},
	}
	tell.register(cmd)
	return cmd
}

func newExemptCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exempt",
		Short: "List and change who is neither counted nor refused",
	}
	cmd.AddCommand(
		newExemptListCmd(),
		newExemptChangeCmd("add", "Exempt a network", false),
		newExemptChangeCmd("del", "Count a network that was exempt", true),
	)
	return cmd
}

func newExemptListCmd() *cobra.Command {
	var asked asking
	cmd := &cobra.Command{
		Use:   "list [TARGET ...]",
		Short: "List the networks that are exempt",
		Long: `List shows of each target, or of those that are named, which networks are neither
counted nor refused: by the key exempt of its rule, or by hand.
` + targetsHelp,
		Example: `  headgate exempt list
  headgate exempt list shop -o json | jq -r '.[] | select(.exempt) | .network'`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := asked.status(cmd.Context(), args)
			if err != nil {
				return err
			}
			return listExempt(cmd.OutOrStdout(), st.Targets, asked.json())
		},
	}
	asked.register(cmd)
	return cmd
}

// listExempt writes who is exempt, as text a line for each network.
func listExempt(out io.Writer, targets []status.Target, asJSON bool) error {
	list := []status.Exemption{}
	p := &printer{w: out}
	for i := range targets {
		t := &targets[i]
		own := t.Exemptions()
		list = append(list, own...)
		if asJSON {
			continue
		}
		where := fmt.Sprintf("port %d of %s, rule %s", t.Port, status.Printable(t.Scope), status.Printable(t.Rule))
		if len(own) == 0 {
			p.printf("%s: nobody is exempt\n", where)
		}
		for _, e := range own {
			is, by := "exempt", "by the rule"
			if !e.Exempt {
				is = "counted"
			}
			if e.ByHand {
				by = "by hand"
			}
			p.printf("%s: %s is %s, %s\n", where, status.Printable(e.Network), is, by)
		}
	}
	if asJSON {
		return writeIndented(out, list)
	}
	return p.err
}

func newExemptChangeCmd(verb, short string, remove bool) *cobra.Command {
	var tell telling
	r := control.Exempt{Remove: remove}
	cmd := &cobra.Command{
		Use:   verb + " CIDR [TARGET]",
		Short: short,
		Long: short + `, on a target or on every one. That holds for whoever comes from now on and
for those who are there. It is kept when the configuration is reloaded, and not
when the agent is restarted. CIDR is as in the key exempt of a rule: 10.0.0.0/8,
fd00::/8, or a single address.
` + targetHelp,
		Example: "  headgate exempt " + verb + " 192.0.2.7 8080",
		Args:    cobra.RangeArgs(1, 2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completeTargets(cmd, args[1:], text)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := config.ParseNetwork(args[0]); err != nil {
				return usageError{err}
			}
			r.Network = args[0]
			if len(args) == 2 {
				r.Target = args[1]
			}
			answer, err := api.SetExempt(cmd.Context(), tell.socket, r)
			if err != nil {
				return err
			}
			is := "exempt"
			if remove {
				is = "counted"
			}
			p := &printer{w: cmd.OutOrStdout()}
			for _, t := range answer.Targets {
				p.printf("port %d of %s, rule %s: %s is %s\n", t.Port, t.Scope, t.Rule, args[0], is)
			}
			return p.err
		},
	}
	tell.register(cmd)
	if !remove {
		cmd.Flags().BoolVar(&r.Force, "force", false, "allow a network that exempts everybody")
	}
	return cmd
}

func newReloadCmd() *cobra.Command {
	var tell telling
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have a running agent read its configuration again",
		Long: `Reload has the agent read its file again and puts all of it in force or, if
anything is wrong with it, nothing: then it says what, and the exit code is 1.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := control.Reload{SSHPort: config.SSHPort(getenv)}
			if err := api.Reload(cmd.Context(), tell.socket, r); err != nil {
				return err
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "the configuration is in force")
			return err
		},
	}
	tell.register(cmd)
	return cmd
}

// describe says of each target what is in force now.
func describe(out io.Writer, answer *control.Answer) error {
	p := &printer{w: out}
	for i := range answer.Targets {
		t := &answer.Targets[i]
		p.printf("port %d of %s, rule %s: %s, limit %d%s\n", t.Port, t.Scope, t.Rule, t.Mode, t.Limit, by(t))
	}
	return p.err
}

// by says who has decided about a limit, and for how long.
func by(t *status.Target) string {
	o := t.Override
	switch {
	case o == nil || o.Limit == nil:
		return " by " + t.Algorithm
	case o.ExpiresInSeconds == nil:
		return " by hand, until it is cleared"
	}
	left := time.Duration(math.Round(*o.ExpiresInSeconds)) * time.Second
	return fmt.Sprintf(" by hand, for %v", left)
}
