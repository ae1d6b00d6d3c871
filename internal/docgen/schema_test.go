package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"headgate/pkg/config"
)

const schemaFile = "../../docs/headgate.schema.json"

// compiled is the schema as it is committed.
func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// instance is a YAML file as a validator sees it.
func instance(t *testing.T, text []byte) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	js, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	in, err := jsonschema.UnmarshalJSON(strings.NewReader(string(js)))
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func TestExamplesAreValid(t *testing.T) {
	s := compiled(t)
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	const line = "# yaml-language-server: $schema=../docs/headgate.schema.json\n"
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(instance(t, text)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if !strings.HasPrefix(string(text), line) {
			t.Errorf("%s does not begin with %s", file, line)
		}
	}
}

// What the schema refuses the agent refuses too, and what it lets through here
// is right; there is more that only the agent can see.
func TestSchemaAgreesWithTheAgent(t *testing.T) {
	s := compiled(t)
	for text, good := range map[string]bool{
		"rules: [{port: 8080}]":                                                    true,
		"rules: [{ports: [8080, 8443], scope: {netns: blue}}]":                     true,
		"rules: [{port: 80, scope: {cgroup: 'a/**/b'}}]":                           true,
		"rules: [{port: 80, scope: {pods: {namespace: a, labels: {b: c, d: 1}}}}]": true,
		"rules: [{scope: {pods: {annotations: true}}}]":                            true,
		"rules: [{port: 80, scope: {pods: {label: {b: c}}}}]":                      false,
		"rules: [{port: 80, scope: {pods: {labels: {b: [c]}}}}]":                   false,
		"{listen: ':9464', window: 50ms, lease: 1m30s, rules: [{port: 80}]}":       true,
		"rules: [{port: 80, pace: {rate: auto}}]":                                  true,
		"rules: [{port: 80, pace: {rate: 0.5, max_wait: 0}}]":                      true,
		"rules: [{port: 80, unit: request, end: {idle: 20ms}}]":                    true,
		"rules: [{port: 80, limit: {algorithm: vegas, alpha: 3*log10(limit)}}]":    true,
		"rules: [{port: 80, limit: {algorithm: gradient2, queue_size: 4}}]":        true,
		"{defaults: {mode: observe, hold: {max_wait: 1s}}, rules: [{port: 80}]}":   true,
		"{rules: [{port: 80}], lisen: ':1'}":                                       false,
		"rules: [{prot: 80}]":                                                      false,
		"rules: [{name: shop}]":                                                    false,
		"rules: [{port: 0}]":                                                       false,
		"rules: [{port: 70000}]":                                                   false,
		"rules: [{port: http}]":                                                    false,
		"rules: {port: 80}":                                                        false,
		"rules: [{port: 80, mode: obsrve}]":                                        false,
		"rules: [{port: 80, scope: container}]":                                    false,
		"rules: [{port: 80, scope: {net: blue}}]":                                  false,
		"rules: [{port: 80, warm_up: soon}]":                                       false,
		"rules: [{port: 80, warm_up: 5}]":                                          false,
		"rules: [{port: 80, force: 1}]":                                            false,
		"rules: [{port: 80, limit: {algorithm: best}}]":                            false,
		"rules: [{port: 80, limit: {maxx: 5}}]":                                    false,
		"rules: [{port: 80, limit: {max: many}}]":                                  false,
		"rules: [{port: 80, pace: {rate: fast}}]":                                  false,
		"rules: [{port: 80, hold: {max_wait: 1s, order: random}}]":                 false,
		"rules: [{port: 80, hold: {max_wait: 1s, max_waiting: 99999}}]":            false,
		"{defaults: {port: 80}, rules: [{port: 80}]}":                              false,
		"{defaults: {name: shop}, rules: [{port: 80}]}":                            false,
	} {
		err := s.Validate(instance(t, []byte(text)))
		if (err == nil) != good {
			t.Errorf("%s: the schema says %v", text, err)
		}
		if _, err := config.Parse([]byte(text), config.Input{File: "x.yaml"}); (err == nil) != good {
			t.Errorf("%s: the agent says %v", text, err)
		}
	}
}

// An editor shows a description for every key.
func TestEveryKeyIsDescribed(t *testing.T) {
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var top map[string]any
	if err := json.Unmarshal(text, &top); err != nil {
		t.Fatal(err)
	}
	n := 0
	var look func(path string, part map[string]any)
	look = func(path string, part map[string]any) {
		keys, _ := part["properties"].(map[string]any)
		for name, k := range keys {
			key := k.(map[string]any)
			n++
			if key["description"] == nil && !strings.HasSuffix(path, "scope") && !strings.HasSuffix(path, "end") {
				t.Errorf("%s.%s has no description", path, name)
			}
			look(path+"."+name, key)
			if items, ok := key["items"].(map[string]any); ok {
				look(path+"."+name, items)
			}
		}
	}
	look("", top)
	if n < 60 {
		t.Errorf("%d keys", n)
	}
}
