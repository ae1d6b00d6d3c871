package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"headgate/pkg/loader"
	"headgate/pkg/status"
)

// selfCheckInterval is how often the agent looks whether all of its programs are
// where it has put them. It costs a few system calls for each.
const selfCheckInterval = 2 * time.Second

// hookIngress names the hook on devices, which pkg/device looks after.
const hookIngress = "tc_ingress"

// selfChecks is what they have found.
type selfChecks struct {
	next     time.Duration
	troubles map[string]status.HookTrouble // by what is said of them
	shadows  map[string]status.Shadow
}

// selfCheck looks whether all hooks are ours still, puts back what can be put
// back, and says once what is not as it should be, and once that it is again.
// The lock is held.
func (a *Agent) selfCheck(now time.Duration) error {
	if now < a.checks.next {
		return nil
	}
	a.checks.next = now + selfCheckInterval
	troubles := make(map[string]status.HookTrouble)
	for _, t := range a.gate.Repair() {
		if t.Repaired {
			a.log.Warn(t.What, "hook", string(t.Hook))
			a.trouble(true, string(t.Hook), t.What)
			a.recounts.next = 0 // who knows what went by meanwhile
			continue
		}
		troubles[string(t.Hook)+t.What] = status.HookTrouble{Hook: string(t.Hook), Trouble: t.What}
	}
	shadows, err := a.shadows()
	if err != nil {
		return err
	}
	for key, t := range troubles {
		if _, known := a.checks.troubles[key]; !known {
			a.log.Error(t.Trouble, "hook", t.Hook)
			a.trouble(false, t.Hook, t.Trouble)
		}
	}
	for key, t := range a.checks.troubles {
		if _, still := troubles[key]; !still {
			a.log.Info("a hook is as it should be again", "hook", t.Hook, "was", t.Trouble)
			a.trouble(true, t.Hook, "it is as it should be again")
		}
	}
	for key, s := range shadows {
		if _, known := a.checks.shadows[key]; !known {
			a.log.Warn("a program of somebody else comes before ours, and may decide in its place", "hook", s.Hook, "at", s.At, "program", s.Name, "id", s.ID)
			a.trouble(false, s.Hook, fmt.Sprintf("program %d, %s, comes before ours at %s", s.ID, s.Name, s.At))
		}
	}
	for key, s := range a.checks.shadows {
		if _, still := shadows[key]; !still {
			a.log.Info("a program of somebody else is gone that came before ours", "hook", s.Hook, "at", s.At, "program", s.Name, "id", s.ID)
			a.trouble(true, s.Hook, fmt.Sprintf("program %d, %s, is gone from %s", s.ID, s.Name, s.At))
		}
	}
	a.checks.troubles, a.checks.shadows = troubles, shadows
	return nil
}

// shadows returns the programs of others that see an arrival before ours, or can
// decide otherwise.
func (a *Agent) shadows() (map[string]status.Shadow, error) {
	found := make(map[string]status.Shadow)
	add := func(s status.Shadow) { found[fmt.Sprint(s)] = s }
	for _, s := range a.scopes {
		others, err := a.gate.Others(s.netns)
		if err != nil {
			return nil, fmt.Errorf("scope %s: %w", s, err)
		}
		for _, o := range others {
			add(status.Shadow{Hook: string(loader.HookLookup), At: s.String(), ID: uint32(o.ID), Name: o.Name})
		}
		if s.holding == nil {
			continue
		}
		shadowed, err := s.holding.devices.Shadowed()
		if err != nil {
			return nil, fmt.Errorf("scope %s: %w", s, err)
		}
		for _, d := range shadowed {
			for _, p := range d.Before {
				add(status.Shadow{Hook: hookIngress, At: s.String() + " " + d.Name, ID: uint32(p.ID), Name: p.Name})
			}
		}
	}
	return found, nil
}

// report adds what the checks have found to a status, in a steady order.
func (c *selfChecks) report(s *status.Status) {
	s.Troubles, s.Shadowed = []status.HookTrouble{}, []status.Shadow{}
	for _, key := range slices.Sorted(maps.Keys(c.troubles)) {
		s.Troubles = append(s.Troubles, c.troubles[key])
	}
	s.Shadowed = slices.SortedFunc(maps.Values(c.shadows), func(a, b status.Shadow) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
	if s.Shadowed == nil {
		s.Shadowed = []status.Shadow{}
	}
}

// shadowed counts the programs of others by hook.
func (c *selfChecks) shadowed() map[string]int {
	n := map[string]int{string(loader.HookLookup): 0, hookIngress: 0}
	for _, s := range c.shadows {
		n[s.Hook]++
	}
	return n
}
