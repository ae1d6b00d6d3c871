package config

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"headgate/pkg/controller"
)

// annotationPrefix begins the keys of the annotations that are for headgate.
const annotationPrefix = "headgate.io/"

// Annotated returns what the rule is for a pod with annotations, see [Pods]. It
// may have no port. The error is of type [Errors].
func (r *Rule) Annotated(pod string, annotations map[string]string) (*Rule, error) {
	d := &decoder{file: "pod " + pod, at: map[string]place{}}
	is, o := *r, origin{at: place{file: d.file}}
	for range is.Ports {
		o.ports = append(o.ports, o.at)
	}
	keys, params := d.rule(&is, &o), d.params(&is.Limit.Params)
	known := map[string]func(value){
		"port": func(v value) {
			is.Ports, o.ports = nil, nil
			for _, port := range strings.Split(annotations[v.at.key], ",") {
				keys["port"](textValue(strings.TrimSpace(port), v.at))
			}
		},
		"limit": func(v value) { d.annotatedLimit(v, annotations[v.at.key], &is.Limit) },
		"min":   params["min"],
		"max":   params["max"],
		"mode":  keys["mode"],
		"unit":  keys["unit"],
	}
	// limit comes before its bounds, as the alphabet has it.
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		key, ours := strings.CutPrefix(name, annotationPrefix)
		if !ours {
			continue
		}
		at := place{file: d.file, key: name}
		for _, path := range []string{name, "." + key, ".limit." + key} {
			d.at[path] = at
		}
		if key == "limit" {
			d.at[".limit.initial"] = at
		}
		if read, ok := known[key]; ok {
			read(textValue(annotations[name], at))
		} else {
			d.failf(at, "unknown annotation; %sthose of headgate.io are %s", didYouMean(key, known), list(known))
		}
	}
	if len(d.errs) == 0 && len(is.Ports) > 0 {
		c := Default()
		c.Rules, d.rules = []Rule{is}, []origin{o}
		d.validate(c, nil)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return &is, nil
}

// annotatedLimit reads a number, which is a fixed limit, or the name of an
// algorithm.
func (d *decoder) annotatedLimit(v value, text string, l *Limit) {
	if _, err := strconv.Atoi(text); err == nil {
		*l = Limit{Algorithm: "fixed"}
		d.params(&l.Params)["initial"](v)
		return
	}
	l.switchTo(text)
	choice(d, v, &l.Algorithm, controller.Names()...)
}
