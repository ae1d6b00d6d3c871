package discovery

import (
	"errors"
	"slices"

	"headgate/pkg/cgroup"
	"headgate/pkg/config"
	"headgate/pkg/kubernetes"
)

// ErrNoAPI means that pods are to be known by namespace or labels, and nobody is
// there who knows these.
var ErrNoAPI = errors.New("the namespace, labels and annotations of pods are known to the Kubernetes API alone, and there is none; " +
	"without them there is pods: {}, for all pods, or cgroup: 'kubepods.slice/**/cri-containerd-*.scope'")

// watched is what a watch is for: the annotations are always there.
func watched(p config.Pods) config.Pods {
	p.Annotations = false
	return p
}

// pods adds the pods that a rule names.
func (l *look) pods(index int, r *config.Rule, add func(int, *config.Rule, config.Scope, string)) {
	cgroups, err := l.tree.Pods()
	if err != nil {
		l.problem(r, err)
		return
	}
	api, err := l.api()
	if errors.Is(err, kubernetes.ErrNone) {
		if r.Scope.Pods != (config.Pods{Given: true}) {
			l.problem(r, ErrNoAPI)
			return
		}
		for uid, path := range cgroups {
			add(index, r, config.Scope{Pod: uid}, path)
		}
		return
	}
	if err != nil {
		l.problem(r, err)
		return
	}
	w := l.watches[watched(r.Scope.Pods)]
	if w == nil {
		w = api.Watch(r.Scope.Pods.Namespace, r.Scope.Pods.Labels, l.log)
		l.watches[watched(r.Scope.Pods)] = w
	}
	pods, err := w.Pods()
	if err != nil {
		l.problem(r, err)
	}
	for _, p := range pods {
		path, here := cgroups[p.CgroupUID]
		if !here {
			continue // not begun yet, or ended
		}
		s := config.Scope{Pod: p.Namespace + "/" + p.Name}
		rule := r
		if r.Scope.Pods.Annotations {
			if rule, err = r.Annotated(s.Pod, p.Annotations); err != nil {
				bad := *r
				bad.Scope = s
				l.leave(&bad, 0, err.Error())
				continue
			}
		}
		add(index, rule, s, path)
	}
}

// Needs returns an error when rules name what cannot be known here: pods without an
// API, or anything without the right to look for it.
func Needs(rules []config.Rule, api func() (*kubernetes.API, error)) error {
	if slices.ContainsFunc(rules, func(r config.Rule) bool { return r.Scope.Found() }) {
		if err := cgroup.Allowed(); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(rules, func(r config.Rule) bool { return r.Scope.Pods.Given }) {
		return nil
	}
	_, err := api()
	if errors.Is(err, kubernetes.ErrNone) {
		if slices.ContainsFunc(rules, func(r config.Rule) bool {
			return r.Scope.Pods.Given && r.Scope.Pods != (config.Pods{Given: true})
		}) {
			return ErrNoAPI
		}
		return nil
	}
	return err
}
