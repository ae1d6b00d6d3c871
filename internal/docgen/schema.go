package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"headgate/pkg/config"
)

// durationPattern is what time.ParseDuration takes, but for signs.
const durationPattern = `^(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`

// schema is a JSON schema, or a part of one.
type schema map[string]any

// schemaPage returns the JSON schema of the configuration: its shape from the
// functions that read it, its descriptions from the comments of the fields.
func schemaPage(root string) (string, error) {
	cfg, err := parsePackage(filepath.Join(root, "pkg/config"))
	if err != nil {
		return "", err
	}
	ctl, err := parsePackage(filepath.Join(root, "pkg/controller"))
	if err != nil {
		return "", err
	}
	p := &page{cfg: cfg, ctl: ctl}
	d := &describer{docs: p.descriptions(), defaults: defaults()}
	if p.err != nil {
		return "", p.err
	}
	top, err := d.schema(config.Schema(), "")
	if err != nil {
		return "", err
	}
	// yaml-language-server knows this draft best.
	top["$schema"] = "http://json-schema.org/draft-07/schema#"
	top["title"] = "headgate configuration"
	top["$comment"] = "Written by go run ./internal/docgen. Do not edit."
	rule := top["properties"].(schema)["rules"].(schema)["items"].(schema)
	rule["anyOf"] = []schema{
		{"required": []string{"port"}}, {"required": []string{"ports"}},
		{"required": []string{"scope"}}, // of pods that say it themselves
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(top); err != nil {
		return "", err
	}
	return out.String(), nil
}

// describer makes a schema of a shape. docs and defaults are by path, as
// docs/config.md has them.
type describer struct {
	docs     map[string]string
	defaults map[string]any
}

func (d *describer) schema(s *config.Shape, path string) (schema, error) {
	out := schema{}
	// What a rule leaves out is described where it is a key of a rule.
	known := path
	if rest, ok := strings.CutPrefix(path, "defaults."); ok {
		known = "rules[]." + rest
	}
	if doc := d.docs[known]; doc != "" {
		out["description"] = strings.Join(strings.Fields(strings.NewReplacer("`", "", `\*`, "*").Replace(doc)), " ")
	}
	if v, ok := d.defaults[known]; ok && known == path {
		out["default"] = v
	}
	switch s.Kind {
	case config.KindKeys:
		keys := schema{}
		for name, k := range s.Keys {
			if k.Kind == config.KindNone {
				continue
			}
			at := name
			if path != "" {
				at = path + "." + name
			}
			part, err := d.schema(k, at)
			if err != nil {
				return nil, err
			}
			keys[name] = part
		}
		out["type"], out["properties"], out["additionalProperties"] = []string{"object", "null"}, keys, false
	case config.KindList, config.KindMap:
		items, err := d.schema(s.Items, path+"[]")
		if err != nil {
			return nil, err
		}
		if s.Kind == config.KindList {
			out["type"], out["items"] = []string{"array", "null"}, items
		} else {
			out["type"], out["additionalProperties"] = []string{"object", "null"}, items
		}
	case config.KindAny:
		var all []schema
		for _, a := range s.Any {
			part, err := d.schema(a, path)
			if err != nil {
				return nil, err
			}
			delete(part, "description")
			delete(part, "default")
			all = append(all, part)
		}
		out["anyOf"] = all
	case config.KindWhole, config.KindNumber:
		out["type"] = "number"
		if s.Kind == config.KindWhole {
			out["type"] = "integer"
		}
		if s.Min < s.Max {
			out["minimum"], out["maximum"] = s.Min, s.Max
		}
	case config.KindDuration:
		out["anyOf"] = []schema{{"type": "string", "pattern": durationPattern}, {"const": 0}}
	case config.KindBoolean:
		out["type"] = "boolean"
	case config.KindWord:
		out["enum"] = s.Words
	case config.KindText, config.KindAmount:
		out["type"] = []string{"string", "number"} // the file's 80 is as good as "80"
	default:
		return nil, fmt.Errorf("%s: its shape is %q", path, s.Kind)
	}
	return out, nil
}

// descriptions returns the comments of all keys, by path.
func (p *page) descriptions() map[string]string {
	docs := map[string]string{}
	for typ, path := range map[string]string{
		"Config": "", "Rule": "rules[].", "Limit": "rules[].limit.", "Hold": "rules[].hold.", "Pace": "rules[].pace.", "Ramp": "rules[].pace.warm_up.",
		"PerSource": "rules[].per_source.", "Scope": "rules[].scope.", "Pods": "rules[].scope.pods.", "Class": "rules[].classes[].",
	} {
		fields := p.fields(p.cfg, typ)
		for _, f := range fields {
			docs[path+f.key] = keyNames(f.doc, fields...)
		}
	}
	docs["rules[].port"] = docs["rules[].ports"]
	docs["defaults"] = "`defaults` are what rules leave out: any key of a rule but name, port, ports and force."
	doc, settings := "", p.settings()
	for _, f := range settings {
		if f.doc != "" {
			doc = f.doc
		}
		if f.key != "-" {
			docs["rules[].limit."+f.key] = keyNames(doc, settings...)
		}
	}
	return docs
}

// defaults returns the defaults that are plain values, by path.
func defaults() map[string]any {
	all := map[string]any{}
	rule := config.DefaultRule()
	for path, v := range map[string]any{
		"": *config.Default(), "rules[].": rule, "rules[].limit.": rule.Limit, "rules[].hold.": rule.Hold,
		"rules[].pace.": rule.Pace, "rules[].pace.warm_up.": rule.Pace.WarmUp,
		"rules[].per_source.": rule.PerSource,
	} {
		s := reflect.ValueOf(v)
		for i := range s.NumField() {
			key, f := s.Type().Field(i).Tag.Get("yaml"), s.Field(i)
			if key == "" || strings.HasPrefix(key, ",") || f.IsZero() {
				continue
			}
			switch value := f.Interface().(type) {
			case time.Duration:
				all[path+key] = value.String()
			default:
				switch f.Kind() {
				case reflect.String, reflect.Int, reflect.Float64, reflect.Bool:
					all[path+key] = value
				}
			}
		}
	}
	return all
}
