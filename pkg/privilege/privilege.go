// Package privilege takes from an agent the rights that it does not need once it
// runs.
package privilege

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"headgate/pkg/config"
)

// base is what every agent needs for as long as it runs: it writes maps, attaches
// to cgroups and devices that appear, speaks with nftables and inet_diag, and
// loads programs that read the kernel's memory.
var base = []cap.Value{cap.BPF, cap.NET_ADMIN, cap.PERFMON}

// Needed returns the capabilities that an agent with a configuration needs while
// it runs. Beside those of every agent that is CAP_NET_RAW where a rule can hold
// something, for what is sent to clients that have waited in vain; and
// CAP_SYS_ADMIN where a rule is of another network namespace than the agent's
// own, to enter that one for whatever there is to look after in there; and
// CAP_SYS_PTRACE where what a rule names has to be looked for, to see which
// network namespace a process of others is in.
func Needed(cfg *config.Config) []cap.Value {
	needed := slices.Clone(base)
	if slices.ContainsFunc(cfg.Rules, func(r config.Rule) bool { return r.NeedsIngress() }) {
		needed = append(needed, cap.NET_RAW)
	}
	if slices.ContainsFunc(cfg.Rules, func(r config.Rule) bool { return r.Scope != config.Scope{} }) {
		needed = append(needed, cap.SYS_ADMIN)
	}
	if slices.ContainsFunc(cfg.Rules, func(r config.Rule) bool { return r.Scope.Found() }) {
		needed = append(needed, cap.SYS_PTRACE)
	}
	return needed
}

// Drop gives up every capability but some, on all threads and for good: they are
// taken out of the bounding set as far as may be, and no program that is begun
// gets any. It returns what is left, which is less than keep when the process did
// not have all of it.
func Drop(keep []cap.Value) (left []cap.Value, err error) {
	had := cap.GetProc()
	for _, c := range keep {
		has, err := had.GetFlag(cap.Permitted, c)
		if err != nil {
			return nil, fmt.Errorf("drop capabilities: %w", err)
		}
		if has {
			left = append(left, c)
		}
	}
	// Without CAP_SETPCAP, an agent that began with less has to leave it.
	if may, err := had.GetFlag(cap.Effective, cap.SETPCAP); err == nil && may {
		for c := range cap.MaxBits() {
			if slices.Contains(left, c) {
				continue
			}
			if err := cap.DropBound(c); err != nil {
				return nil, fmt.Errorf("drop %v from the bounding set: %w", c, err)
			}
		}
	}
	if _, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("no new privileges: %w", err)
	}
	is := cap.NewSet()
	for _, flag := range []cap.Flag{cap.Permitted, cap.Effective} {
		if err := is.SetFlag(flag, true, left...); err != nil {
			return nil, fmt.Errorf("drop capabilities: %w", err)
		}
	}
	if err := is.SetProc(); err != nil { // the ambient ones go with the inheritable
		return nil, fmt.Errorf("drop capabilities: %w", err)
	}
	return left, nil
}
