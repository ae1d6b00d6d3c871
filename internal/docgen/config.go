package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"headgate/pkg/config"
	"headgate/pkg/controller"
)

const configIntro = `# Configuration

<!-- Written by go run ./internal/docgen. Do not edit. -->

` + "`headgate run -c FILE`" + ` reads one YAML document of at most 1 MiB. ` + "`headgate run -p 8080`" + ` needs no file: each ` + "`-p`" + ` is a
rule for that port, with every default. Flags take precedence over the environment, and that over the file.

The file is read strictly. An unknown key is an error, and so are anchors, aliases and tags. Every error of a
file is reported, with line, column and key; a file with an error changes nothing. ` + "`headgate check -c FILE`" + ` tells.

Editors that know JSON schemas check the file while it is written and show what each key means: its first line
says where ` + "[headgate.schema.json](headgate.schema.json)" + ` is, as in ` + "`# yaml-language-server: $schema=headgate.schema.json`" + `.

A duration is a number with a unit: ` + "`100ms`, `2s`, `1m30s`" + `. ` + "`examples/`" + ` has files to begin with; the shortest is

` + "```yaml" + `
rules:
  - port: 8080
` + "```" + `
`

const configTogether = `
| key | goes with | an error with |
|---|---|---|
| ` + "`end`" + ` | ` + "`unit: request`" + ` | ` + "`unit: connection`" + ` |
| ` + "`signal: connection`, `signal: accept`" + ` | ` + "`unit: connection`" + ` | ` + "`unit: request`" + ` |
| ` + "`signal: accept`" + ` | ` + "`algorithm: aimd`, `algorithm: fixed`" + ` | any other |
| ` + "`reject: drop`" + ` | ` + "`unit: connection`" + ` | ` + "`unit: request`" + ` |
| ` + "`hold.max_waiting`, `hold.order`" + ` | a ` + "`max_wait`" + ` above 0s, of ` + "`hold`" + ` or of ` + "`pace`" + ` | neither |
| any of ` + "`pace`" + ` | ` + "`pace.rate`" + `, a number or auto | no rate |
| ` + "`pace.headroom`" + ` | ` + "`rate: auto`" + ` | a number |
| ` + "`pace.warm_up`" + ` | a number | ` + "`rate: auto`" + ` |

An arrival is asked for its source first: one that is exempt passes, one of a source with too many units is
refused. Then come its class, the limit and the pace.

Every algorithm goes with every pace: with ` + "`algorithm: fixed`" + `, ` + "`rate: auto`" + ` follows the latency alone. What ` + "`defaults`" + `
say of ` + "`end`, `hold`" + ` and ` + "`pace`" + ` counts for the rules that have a use for it, and is no error for the others, but for
` + "`warm_up` with `rate: auto`" + `.

A rule with ` + "`unit: request`, with `reject: drop`" + `, or where something can wait, has its arrivals looked at on the
network devices of its scope; any other costs the devices nothing. While the mode is observe nothing waits, and
nothing is paced.
`

// configPage returns the reference of the configuration.
func configPage(root string) (string, error) {
	cfg, err := parsePackage(filepath.Join(root, "pkg/config"))
	if err != nil {
		return "", err
	}
	ctl, err := parsePackage(filepath.Join(root, "pkg/controller"))
	if err != nil {
		return "", err
	}
	p := &page{cfg: cfg, ctl: ctl}
	p.print(configIntro)
	p.print("\n## Top level\n")
	p.structure(cfg, "Config", "", reflect.ValueOf(*config.Default()))
	p.print("\n## A rule\n")
	p.structure(cfg, "Rule", "rules[].", reflect.ValueOf(config.DefaultRule()))
	p.print("\n## The scope of a rule\n")
	p.structure(cfg, "Scope", "rules[].scope.", reflect.ValueOf(config.Scope{}))
	p.structure(cfg, "Pods", "rules[].scope.pods.", reflect.ValueOf(config.Pods{}))
	p.print("\n## The limit of a rule\n")
	p.structure(cfg, "Limit", "rules[].limit.", reflect.ValueOf(config.DefaultRule().Limit))
	p.params()
	p.algorithms()
	rule := config.DefaultRule()
	p.print("\n## The hold of a rule\n")
	p.structure(cfg, "Hold", "rules[].hold.", reflect.ValueOf(rule.Hold))
	p.print("\n## The pace of a rule\n")
	p.structure(cfg, "Pace", "rules[].pace.", reflect.ValueOf(rule.Pace))
	p.structure(cfg, "Ramp", "rules[].pace.warm_up.", reflect.ValueOf(rule.Pace.WarmUp))
	p.print("\n## The limit of each source\n")
	p.structure(cfg, "PerSource", "rules[].per_source.", reflect.ValueOf(rule.PerSource))
	p.print("\n## The classes of a rule\n")
	p.structure(cfg, "Class", "rules[].classes[].", reflect.ValueOf(config.Class{}))
	p.print("\n## What goes together\n%s", configTogether)
	p.environment()
	return p.text.String(), p.err
}

// page gathers text, and the first error.
type page struct {
	cfg, ctl source
	text     strings.Builder
	err      error
}

func (p *page) print(format string, args ...any) { fmt.Fprintf(&p.text, format, args...) }

func (p *page) fields(s source, name string) []field {
	f, err := s.fields(name)
	p.err = errors.Join(p.err, err)
	return f
}

// structure describes the keys of a struct; defaults is a value of its type.
func (p *page) structure(s source, name, path string, defaults reflect.Value) {
	fields := p.fields(s, name)
	for _, f := range fields {
		if f.key == "" || f.key == "-" || strings.HasPrefix(f.key, ",") {
			continue
		}
		p.print("\n### `%s%s`\n\n%s\n", path, f.key, keyNames(f.doc, fields...))
		if d := defaultText(defaults.FieldByName(f.name)); d != "" {
			p.print("\nDefault: `%s`.\n", d)
		}
	}
}

// defaultText formats a default as YAML; empty when there is none to show.
func defaultText(v reflect.Value) string {
	_, text := v.Interface().(fmt.Stringer) // such as a scope, whose zero is the host
	switch kind := v.Kind(); {
	case kind == reflect.Slice, kind == reflect.Pointer, !text && (kind == reflect.Struct || v.IsZero()):
		return ""
	}
	return fmt.Sprint(v.Interface())
}

// params describes the settings of the algorithms. A field without a comment
// shares that of the one before.
func (p *page) params() {
	fields, takers := p.settings(), takers()
	for i := 0; i < len(fields); {
		end := i + 1
		for end < len(fields) && fields[end].doc == "" {
			end++
		}
		p.setting(fields[i:end], fields, takers)
		i = end
	}
}

// settings returns the fields of controller.Params. For those that refer to
// the type of guarded's settings, the comments are taken from there.
func (p *page) settings() []field {
	fields := p.fields(p.ctl, "Params")
	refers := slices.IndexFunc(fields, func(f field) bool { return strings.Contains(f.doc, "[GuardedParams]") })
	if refers < 0 {
		return fields
	}
	keys := map[string]string{fields[refers].name: fields[refers].key}
	end := refers + 1
	for ; end < len(fields) && fields[end].doc == ""; end++ {
		keys[fields[end].name] = fields[end].key
	}
	var own []field
	for _, f := range p.fields(p.ctl, "GuardedParams") {
		if f.key = keys[f.name]; f.key != "" {
			own = append(own, f)
		}
	}
	if len(own) != len(keys) {
		p.err = errors.Join(p.err, fmt.Errorf("GuardedParams has %d of the fields %v", len(own), keys))
	}
	return slices.Replace(fields, refers, end, own...)
}

// setting describes fields that share a comment.
func (p *page) setting(group, fields []field, takers map[string][]string) {
	var keys []string
	for _, f := range group {
		if f.key != "-" && f.key != "warm_up" { // warm_up is a key of the rule
			keys = append(keys, "`rules[].limit."+f.key+"`")
		}
	}
	if len(keys) == 0 {
		return
	}
	of := strings.Join(takers[group[0].key], ", ")
	if len(takers[group[0].key]) == len(controller.Names()) {
		of = "every algorithm"
	}
	p.print("\n### %s\n\n%s\n\nOf %s.\n", strings.Join(keys, ", "), keyNames(group[0].doc, fields...), of)
}

// takers returns the algorithms that have each setting, by asking them.
func takers() map[string][]string {
	all := map[string][]string{}
	t := reflect.TypeFor[controller.Params]()
	for i := range t.NumField() {
		if t.Field(i).Type.Kind() != reflect.Pointer {
			continue
		}
		key := t.Field(i).Tag.Get("yaml")
		for _, name := range controller.Names() {
			var p controller.Params
			reflect.ValueOf(&p).Elem().Field(i).Set(reflect.New(t.Field(i).Type.Elem()))
			if !notASetting(name, key, p) {
				all[key] = append(all[key], name)
			}
		}
	}
	return all
}

func notASetting(name, key string, p controller.Params) bool {
	_, err := controller.New(name, p)
	var e *controller.ParamError
	return errors.As(err, &e) && e.Key == key && strings.HasPrefix(e.Reason, "not a setting")
}

// algorithms describes each algorithm by the comment of its type, the default
// first.
func (p *page) algorithms() {
	p.print("\n## Algorithms\n")
	first := config.DefaultRule().Limit.Algorithm
	names := slices.DeleteFunc(controller.Names(), func(name string) bool { return name == first })
	for _, name := range append([]string{first}, names...) {
		for typ := range p.ctl {
			if strings.ToLower(typ) != name {
				continue
			}
			doc, err := p.ctl.doc(typ)
			p.err = errors.Join(p.err, err)
			p.print("\n### %s\n\n%s\n", name, markdown(strings.Replace(doc, typ+" is", "`"+name+"` is", 1)))
		}
	}
}

func (p *page) environment() {
	p.print("\n## Environment and flags\n\nAn empty variable is as good as none.\n\n| key | variable | flag |\n|---|---|---|\n")
	for _, key := range config.OverridableKeys() {
		p.print("| `%s` | `HEADGATE_%s` | `--%s` |\n", key, strings.ToUpper(key), strings.ReplaceAll(key, "_", "-"))
	}
}
