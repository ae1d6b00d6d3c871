package discovery

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"headgate/pkg/cgroup"
	"headgate/pkg/config"
)

func claimOf(rule, scope string, netns uint64, port uint16, rank int) claim {
	r := config.DefaultRule()
	r.Name, r.Scope = rule, config.Scope{Pod: scope}
	return claim{candidate: &candidate{rule: &r}, port: port, netns: cgroup.Process{Netns: netns}, rank: rank}
}

func scopes(claims []claim) string {
	var all []string
	for _, c := range claims {
		all = append(all, fmt.Sprintf("%s:%s:%d", c.rule.Name, c.rule.Scope.Pod, c.port))
	}
	return strings.Join(all, " ")
}

// A port of a namespace has one owner; who else would have it is told, unless it
// is of the same rule.
func TestDistribute(t *testing.T) {
	l := &look{Finder: &Finder{log: slog.New(slog.DiscardHandler)}}
	named := config.DefaultRule()
	named.Name = "named"
	got := l.distribute([]claim{
		claimOf("a", "p1", 1, 80, rankKnown),
		claimOf("a", "p1-pause", 1, 80, rankOther),
		claimOf("a", "p1", 1, 81, rankOther),
		claimOf("a", "p2", 2, 80, rankOther),
		claimOf("b", "p2", 2, 80, rankOwner),
		claimOf("b", "p3", 3, 80, rankOwner),
	}, map[at]*config.Rule{{3, 80}: &named})
	if want := "a:p1:80 a:p1:81 a:p2:80"; scopes(got) != want {
		t.Errorf("%s; want %s", scopes(got), want)
	}
	var left []string
	for _, x := range l.Left {
		left = append(left, x.Rule+":"+x.Scope+": "+x.Reason)
	}
	if len(left) != 2 || !strings.HasPrefix(left[0], "b:pod:p2: rule a protects the port already") || !strings.HasPrefix(left[1], "b:pod:p3: rule named ") {
		t.Errorf("left: %q", left)
	}
}

// Who is protected stays so, however many come.
func TestFit(t *testing.T) {
	l := &look{Finder: &Finder{log: slog.New(slog.DiscardHandler)}}
	var claims []claim
	for i := range MaxTargets + 50 {
		rank := rankOther
		if i >= 60 && i < MaxTargets+40 {
			rank = rankKnown // all but 60 and 10 are
		}
		claims = append(claims, claimOf("a", fmt.Sprint(i), uint64(i), 80, rank))
	}
	got := l.fit(slices.Clone(claims))
	if len(got) != MaxTargets || len(l.Left) != 50 {
		t.Fatalf("%d fit, %d are left", len(got), len(l.Left))
	}
	for _, c := range claims {
		if c.rank == rankKnown && !slices.ContainsFunc(got, func(g claim) bool { return g.candidate == c.candidate }) {
			t.Errorf("%s was protected, and is left", c.rule.Scope)
		}
	}
	if !strings.Contains(l.Left[0].Reason, "no room for more") {
		t.Errorf("left: %+v", l.Left[0])
	}
}
