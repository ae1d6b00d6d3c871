// Package discovery finds what the scopes of rules name that comes and goes: the
// network namespaces of cgroups and pods.
package discovery

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"headgate/pkg/cgroup"
	"headgate/pkg/config"
	"headgate/pkg/kubernetes"
	"headgate/pkg/scope"
)

// MaxTargets is how many targets are found at most, of all rules together: the
// maps of the programs have a place for each, and are read in every window.
const MaxTargets = 200

// Found is a target that was found. Its rule is a copy whose scope is that one
// cgroup or pod.
type Found struct {
	config.Target

	// Netns is open until the next [Finder.Look].
	Netns *scope.Netns
}

// Left is something that a rule names and that is not protected.
type Left struct {
	Rule   string
	Scope  string
	Port   uint16 // 0: none in particular
	Reason string
}

// Result is what there is at one moment.
type Result struct {
	Found []Found // in the order of the rules
	Left  []Left

	// Problems are why it cannot be known what there is.
	Problems []string
}

// Finder looks for targets. It is not safe for concurrent use.
type Finder struct {
	tree cgroup.Tree
	api  func() (*kubernetes.API, error)
	log  *slog.Logger

	own     *scope.Netns // of the agent
	ownID   uint64
	open    map[uint64]*scope.Netns // by inode number
	known   map[spot]uint64         // where each target was found, by inode number
	watches map[config.Pods]*kubernetes.Watch
}

// spot is a port of a cgroup or pod.
type spot struct {
	scope config.Scope
	port  uint16
}

// New returns a finder in a cgroup2 hierarchy. api is asked for once a rule
// names pods. The finder must be closed.
func New(root string, api func() (*kubernetes.API, error), log *slog.Logger) (*Finder, error) {
	f := &Finder{
		tree:    cgroup.Tree(root),
		api:     api,
		log:     log,
		open:    make(map[uint64]*scope.Netns),
		known:   make(map[spot]uint64),
		watches: make(map[config.Pods]*kubernetes.Watch),
	}
	var err error
	if f.own, err = scope.OpenNetns(""); err != nil {
		return nil, err
	}
	if f.ownID, err = f.own.Inode(); err != nil {
		return nil, errors.Join(err, f.own.Close())
	}
	return f, nil
}

// Close ends all watches and closes all namespaces.
func (f *Finder) Close() error {
	errs := []error{f.own.Close()}
	for _, w := range f.watches {
		w.Stop()
	}
	for _, ns := range f.open {
		errs = append(errs, ns.Close())
	}
	return errors.Join(errs...)
}

// candidate is a cgroup or pod that a rule names.
type candidate struct {
	rule  *config.Rule // a copy for it
	index int          // of the rule
	pod   bool
	group cgroup.Group
}

// claim is a target as it could be.
type claim struct {
	*candidate
	port  uint16
	netns cgroup.Process
	rank  int
}

// The ranks of claims to the same port of a namespace: who has it keeps it, and
// else it is whose listener it is.
const (
	rankKnown = iota
	rankOwner
	rankOther
)

// Look returns what the rules name now.
func (f *Finder) Look(rules []config.Rule) Result {
	l := &look{Finder: f, listeners: make(map[uint64][]scope.Listener), groups: make(map[string]grouped)}
	taken := l.configured(rules)
	var claims []claim
	for _, c := range l.candidates(rules) {
		for _, port := range c.rule.Ports {
			if cl, ok := l.claim(c, port); ok {
				claims = append(claims, cl)
			}
		}
	}
	slices.SortStableFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(a.index, b.index), cmp.Compare(a.rank, b.rank),
			cmp.Compare(a.rule.Scope.String(), b.rule.Scope.String()))
	})
	claims = l.distribute(claims, taken)
	claims = l.fit(claims)
	f.known = make(map[spot]uint64)
	for _, c := range claims {
		ns, err := f.netns(c.netns)
		if err != nil {
			l.refused(c.rule, c.port, err)
			continue
		}
		f.known[spot{c.rule.Scope, c.port}] = c.netns.Netns
		l.Found = append(l.Found, Found{config.Target{Rule: c.rule, Port: c.port}, ns})
	}
	l.tidy(rules)
	return l.Result
}

// Settle looks until all that can be known is, or for so long.
func (f *Finder) Settle(rules []config.Rule, patience time.Duration) Result {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		r := f.Look(rules)
		synced := true
		for _, w := range f.watches {
			synced = synced && w.Synced()
		}
		if synced || time.Now().After(deadline) {
			return r
		}
	}
}

// netns returns the namespace that a process was seen in.
func (f *Finder) netns(p cgroup.Process) (*scope.Netns, error) {
	if p.Netns == f.ownID {
		return f.own, nil
	}
	if ns := f.open[p.Netns]; ns != nil {
		return ns, nil
	}
	ns, err := scope.OpenNetns(cgroup.NetnsPath(p.PID))
	if err != nil {
		return nil, err
	}
	if inode, err := ns.Inode(); err != nil || inode != p.Netns {
		return nil, errors.Join(errGone, err, ns.Close())
	}
	f.open[p.Netns] = ns
	return ns, nil
}

// errGone means that a process has ended since it was seen.
var errGone = errors.New("its process has ended since")

// look is one look.
type look struct {
	*Finder
	Result
	listeners map[uint64][]scope.Listener // by inode number of the namespace
	groups    map[string]grouped
	used      []uint64 // namespaces
}

type grouped struct {
	group cgroup.Group
	err   error
}

func (l *look) leave(r *config.Rule, port uint16, reason string) {
	l.Left = append(l.Left, Left{Rule: r.Name, Scope: r.Scope.String(), Port: port, Reason: reason})
}

// refused notes that a namespace could not be looked into. If it is gone, that is
// as it should be.
func (l *look) refused(r *config.Rule, port uint16, err error) {
	if !errors.Is(err, errGone) && !errors.Is(err, scope.ErrNoNetns) {
		l.leave(r, port, err.Error())
	}
}

// at is a port of a namespace.
type at struct {
	netns uint64
	port  uint16
}

// configured returns what rules name outright, and by which.
func (l *look) configured(rules []config.Rule) map[at]*config.Rule {
	taken := make(map[at]*config.Rule)
	for i := range rules {
		r := &rules[i]
		if r.Scope.Found() {
			continue
		}
		inode, err := scope.Inode(r.Scope.Netns)
		if err != nil {
			continue // it is missing, as will be said
		}
		for _, port := range r.Ports {
			taken[at{inode, port}] = r
		}
	}
	return taken
}

// candidates returns what the rules name, and has processes.
func (l *look) candidates(rules []config.Rule) []*candidate {
	var all []*candidate
	add := func(index int, rule *config.Rule, s config.Scope, path string) {
		r := *rule
		r.Scope = s
		g, ok := l.groups[path]
		if !ok {
			g.group, g.err = l.tree.Group(path)
			l.groups[path] = g
		}
		if g.err != nil && len(g.group.Netns) == 0 {
			l.leave(&r, 0, g.err.Error())
			return
		}
		for _, p := range g.group.Netns {
			l.used = append(l.used, p.Netns)
		}
		all = append(all, &candidate{rule: &r, index: index, pod: s.Pod != "", group: g.group})
	}
	for i := range rules {
		r := &rules[i]
		switch {
		case r.Scope.Cgroup != "":
			pattern, err := cgroup.ParsePattern(r.Scope.Cgroup)
			if err == nil {
				var paths []string
				paths, err = l.tree.Find(pattern)
				for _, path := range paths {
					add(i, r, config.Scope{Cgroup: path}, path)
				}
			}
			if err != nil {
				l.problem(r, err)
			}
		case r.Scope.Pods.Given:
			l.pods(i, r, add)
		}
	}
	return all
}

func (l *look) problem(r *config.Rule, err error) {
	l.Problems = append(l.Problems, fmt.Sprintf("rule %s: %s: %v", r.Name, r.Scope, err))
}

// claim says where a candidate has a port, if it has it.
func (l *look) claim(c *candidate, port uint16) (claim, bool) {
	var others []claim
	was := l.known[spot{c.rule.Scope, port}]
	for _, p := range firstOf(c.group.Netns, was) {
		known := p.Netns == was
		cl := claim{candidate: c, port: port, netns: p, rank: rankOther}
		if known {
			cl.rank = rankKnown
		}
		host := p.Netns == l.ownID
		if !host && (known || c.pod) {
			return cl, true
		}
		listens, owns, err := l.listening(p, port, c.group.IDs)
		if err != nil {
			l.refused(c.rule, port, err)
			continue
		}
		switch {
		case known && (owns || !listens): // a server that restarts keeps its limit
			return cl, true
		case owns:
			cl.rank = rankOwner
			others = append([]claim{cl}, others...)
		case listens && !host:
			others = append(others, cl)
		}
	}
	if len(others) == 0 {
		return claim{}, false
	}
	return others[0], true
}

// firstOf puts the processes of one namespace first.
func firstOf(all []cgroup.Process, netns uint64) []cgroup.Process {
	i := slices.IndexFunc(all, func(p cgroup.Process) bool { return p.Netns == netns })
	if i <= 0 {
		return all
	}
	return slices.Concat(all[i:i+1], all[:i], all[i+1:])
}

// listening says whether there is a listener on a port of a namespace, and
// whether it belongs to one of some cgroups.
func (l *look) listening(p cgroup.Process, port uint16, ids map[uint64]bool) (any, owned bool, err error) {
	all, ok := l.listeners[p.Netns]
	if !ok {
		ns, err := l.netns(p)
		if err != nil {
			return false, false, err
		}
		err = ns.Do(func() (err error) {
			all, err = scope.Listeners()
			return err
		})
		if err != nil {
			return false, false, err
		}
		l.listeners[p.Netns] = all
	}
	for _, s := range all {
		if s.Port == port {
			any = true
			owned = owned || ids[s.CgroupID]
		}
	}
	return any, owned, nil
}

// distribute gives each port of a namespace to the first that claims it.
func (l *look) distribute(claims []claim, taken map[at]*config.Rule) []claim {
	return slices.DeleteFunc(claims, func(c claim) bool {
		place := at{c.netns.Netns, c.port}
		first := taken[place]
		if first == nil {
			taken[place] = c.rule
			return false
		}
		// Containers of a pod share its namespace: that is as it should be.
		if first.Name != c.rule.Name {
			l.leave(c.rule, c.port, fmt.Sprintf("rule %s protects the port already, as that of %s: it is the same network namespace", first.Name, first.Scope))
		}
		return true
	})
}

// fit leaves away what there is no room for, the newest first.
func (l *look) fit(claims []claim) []claim {
	room := MaxTargets
	for _, c := range claims {
		if c.rank == rankKnown {
			room--
		}
	}
	return slices.DeleteFunc(claims, func(c claim) bool {
		if c.rank == rankKnown {
			return false
		}
		if room--; room < 0 {
			l.leave(c.rule, c.port, fmt.Sprintf("there are %d targets that were found already, and no room for more", MaxTargets))
			return true
		}
		return false
	})
}

// tidy closes what is not in use any more.
func (l *look) tidy(rules []config.Rule) {
	maps.DeleteFunc(l.open, func(inode uint64, ns *scope.Netns) bool {
		if slices.Contains(l.used, inode) {
			return false
		}
		if err := ns.Close(); err != nil {
			l.log.Error("cannot close a network namespace", "error", err)
		}
		return true
	})
	maps.DeleteFunc(l.watches, func(pods config.Pods, w *kubernetes.Watch) bool {
		if slices.ContainsFunc(rules, func(r config.Rule) bool { return watched(r.Scope.Pods) == pods }) {
			return false
		}
		w.Stop()
		return true
	})
}
