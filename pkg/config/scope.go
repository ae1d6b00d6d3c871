package config

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"

	"headgate/pkg/cgroup"
	"headgate/pkg/scope"
)

// Scope is where the ports of a rule are. The zero value is the network namespace
// of the host. At most one of Netns, Cgroup and Pods is given. Scopes are
// comparable: equal values are the same scope.
type Scope struct {
	// Netns is a network namespace: a name that ip netns lists, under /run/netns,
	// or an absolute path.
	Netns string `yaml:"netns"`

	// Cgroup is a pattern of cgroups, by their path in the cgroup2 hierarchy:
	// system.slice/nginx.service is a systemd unit,
	// kubepods.slice/**/cri-containerd-*.scope are containers. * is any part of a
	// name, ? any character, [ab] one of some, ** any number of names. Where a
	// process of such a cgroup, or of one below it, is in a network namespace with
	// a listener on the port, there is a target. In the host's own namespace that
	// is so only where the listener is the cgroup's. Targets come and go with
	// cgroups, processes and namespaces, within two seconds.
	Cgroup string `yaml:"cgroup"`

	// Pods are pods of this node.
	Pods Pods `yaml:"pods"`

	// Pod is a single pod that was found, NAMESPACE/NAME or its UID.
	Pod string `yaml:"-"`
}

// Pods select pods of the node that the agent is on. Each is a target for each
// port of the rule, with a limit of its own, from when it has processes until it
// has none. In a pod with hostNetwork the port is that of the host.
type Pods struct {
	Given bool `yaml:"-"` // the key is there

	// Namespace is that of the pods; by default all. Namespaces and labels are
	// known to the Kubernetes API alone: the agent asks it for the pods of the
	// node that the variable HEADGATE_NODE names. Where there is no API, pods: {}
	// protects every pod that the cgroup hierarchy shows, by its UID.
	Namespace string `yaml:"namespace"`

	// Labels are those that a pod must have: {app: web}. By default none.
	Labels string `yaml:"labels"`

	// Annotations lets a pod say what differs from the rule by its annotations:
	// headgate.io/port (8080, or several with commas between), headgate.io/limit
	// (a number for a fixed limit, or the name of an algorithm), headgate.io/min,
	// headgate.io/max, headgate.io/mode and headgate.io/unit. The rule then needs
	// no port; a pod without one is not protected. What is wrong with a pod's
	// annotations is told in log and status, and that pod is not protected. Who
	// may annotate pods decides over their limits. By default false.
	Annotations bool `yaml:"annotations"`
}

// Found says whether what the scope names comes and goes, and has to be looked
// for.
func (s Scope) Found() bool { return s.Cgroup != "" || s.Pods.Given }

// mayBeHost says whether its ports may be those of the host: so may a unit's, and so
// are those of the host's own namespace by a name or a path.
func (s Scope) mayBeHost() bool {
	if s.Netns == "" {
		return !s.Pods.Given
	}
	return scope.IsOwn(s.Netns)
}

// String returns how status and metrics show it: host, netns:NAME, cgroup:PATH or
// pod:NAMESPACE/NAME; and what is looked for, pods:NAMESPACE{LABELS}. No two scopes
// are shown alike.
func (s Scope) String() string {
	switch {
	case s.Pod != "":
		return "pod:" + s.Pod
	case s.Pods.Given:
		text := "pods:" + s.Pods.Namespace
		if s.Pods.Labels != "" {
			text += "{" + s.Pods.Labels + "}"
		}
		return text
	case s.Cgroup != "":
		return "cgroup:" + readable(s.Cgroup)
	case s.Netns != "":
		return "netns:" + s.Netns
	}
	return "host"
}

// readable quotes the path of a cgroup that has something in it that a terminal would
// act on, or that is no text: whoever has a cgroup of his own names those below it.
func readable(path string) string {
	plain := utf8.ValidString(path) && !strings.HasPrefix(path, `"`) &&
		!strings.ContainsFunc(path, func(c rune) bool { return !unicode.IsPrint(c) })
	if plain {
		return path
	}
	return strconv.Quote(path)
}

// What Kubernetes allows: RFC 1123 labels, and qualified names.
var (
	podNamespace = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	labelKey     = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	labelValue   = regexp.MustCompile(`^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`)
)

// scope reads a scope, in place of what the defaults say.
func (d *decoder) scope(v value, s *Scope) {
	d.either(v, func(v value) {
		*s = Scope{}
		d.fields(v, map[string]func(value){
			"netns":  func(v value) { d.netns(v, s) },
			"cgroup": func(v value) { d.cgroup(v, s) },
			"pods":   func(v value) { d.pods(v, &s.Pods) },
		})
		given := 0
		for _, is := range []bool{s.Netns != "", s.Cgroup != "", s.Pods.Given} {
			if is {
				given++
			}
		}
		if given > 1 {
			d.failf(v.at, "netns, cgroup and pods exclude each other")
		}
	}, func(v value) {
		host := "host"
		choice(d, v, &host, "host")
		*s = Scope{}
	})
}

func (d *decoder) cgroup(v value, s *Scope) {
	text, ok := d.scalar(v, "a pattern of cgroups")
	if !ok {
		return
	}
	p, err := cgroup.ParsePattern(text)
	if err != nil {
		d.failf(v.at, "%s %v", quote(text), err)
		return
	}
	s.Cgroup = p.String()
}

func (d *decoder) pods(v value, p *Pods) {
	*p = Pods{Given: true}
	d.fields(v, map[string]func(value){
		"namespace": func(v value) {
			if d.text(v, &p.Namespace); v.shape == nil && !podNamespace.MatchString(p.Namespace) {
				d.failf(v.at, "%s is not the name of a namespace", quote(p.Namespace))
			}
		},
		"labels":      func(v value) { d.labels(v, &p.Labels) },
		"annotations": func(v value) { d.boolean(v, &p.Annotations) },
	})
}

// labels reads a mapping into a selector, sorted: equal ones are the same.
func (d *decoder) labels(v value, selector *string) {
	if v.describe(Shape{Kind: KindMap, Items: &Shape{Kind: KindText}}) {
		return
	}
	m, ok := v.node.(*ast.MappingNode)
	if !ok {
		d.failf(v.at, "want labels with values, such as {app: web}, not %s", kind(v.node))
		return
	}
	var all []string
	keys := make(map[string]func(value))
	for _, kv := range m.Values {
		key := kv.Key.GetToken().Value
		keys[key] = func(v value) {
			text, ok := d.scalar(v, "the value of a label")
			switch {
			case !ok:
			case !labelKey.MatchString(key):
				d.failf(v.at, "%s is not the key of a label", quote(key))
			case !labelValue.MatchString(text):
				d.failf(v.at, "%s is not the value of a label", quote(text))
			default:
				all = append(all, key+"="+text)
			}
		}
	}
	d.fields(v, keys)
	slices.Sort(all)
	*selector = strings.Join(all, ",")
}
