package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
)

// field is one field of a struct, as its source has it.
type field struct {
	name string // in Go
	key  string // in YAML; empty for none
	doc  string // empty when the field belongs to the one before
}

// source holds the types of a package, by name.
type source map[string]*ast.GenDecl

// parsePackage reads the Go files of a directory but its tests.
func parsePackage(dir string) (source, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	s := source{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE && len(g.Specs) == 1 {
				s[g.Specs[0].(*ast.TypeSpec).Name.Name] = g
			}
		}
	}
	return s, nil
}

// doc returns the comment of a type, which must have one.
func (s source) doc(name string) (string, error) {
	if s[name] == nil || s[name].Doc.Text() == "" {
		return "", fmt.Errorf("type %s has no comment", name)
	}
	return strings.TrimSpace(s[name].Doc.Text()), nil
}

// fields returns the exported fields of a struct.
func (s source) fields(name string) ([]field, error) {
	if s[name] == nil {
		return nil, fmt.Errorf("there is no type %s", name)
	}
	t, ok := s[name].Specs[0].(*ast.TypeSpec).Type.(*ast.StructType)
	if !ok {
		return nil, fmt.Errorf("type %s is no struct", name)
	}
	var all []field
	for _, f := range t.Fields.List {
		var key string
		if f.Tag != nil {
			key = reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("yaml")
		}
		for i, n := range f.Names {
			if !n.IsExported() {
				continue
			}
			doc := strings.TrimSpace(f.Doc.Text())
			if i > 0 {
				doc = ""
			}
			all = append(all, field{name: n.Name, key: key, doc: doc})
		}
	}
	return all, nil
}

// keyNames rewrites the Go names of fields in a comment to the keys.
func keyNames(doc string, fields ...field) string {
	keys := map[string]string{}
	var names []string
	for _, f := range fields {
		if f.key != "" && f.key != "-" && !strings.HasPrefix(f.key, ",") {
			keys[f.name] = "`" + f.key + "`"
			names = append(names, f.name)
		}
	}
	word := regexp.MustCompile(`\b(` + strings.Join(names, "|") + `)\b`)
	return word.ReplaceAllStringFunc(markdown(doc), func(name string) string { return keys[name] })
}

// markdown keeps what a comment says from being taken for emphasis.
func markdown(doc string) string { return strings.ReplaceAll(doc, "*", `\*`) }
