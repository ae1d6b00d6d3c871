package config

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// maxSize is the most bytes of a configuration file; 1000 rules with
	// every key fit four times over.
	maxSize = 1 << 20

	// maxDepth is how deep lists and mappings may lie in one another. The
	// format needs 5. The parser recurses, and its time grows with the square
	// of the depth.
	maxDepth = 16
)

// document parses a YAML file of one document and returns its body, nil when
// it is empty. What the format has no use for is refused before parsing:
// anchors and aliases could make a short file a huge configuration.
func (r *report) document(file string, data []byte) ast.Node {
	if len(data) > maxSize {
		r.failf(place{file: file}, "is larger than %d bytes", maxSize)
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	r.lines = strings.Split(strings.ReplaceAll(string(data), "\r\n", "\n"), "\n")
	tokens := lexer.Tokenize(string(data))
	if t, why := refused(tokens); t != nil {
		r.failf(tokenPlace(file, t), "%s", why)
		return nil
	}
	f, err := parser.Parse(tokens, 0)
	if err != nil {
		at, msg := place{file: file}, err.Error()
		if e := yaml.Error(nil); errors.As(err, &e) {
			at, msg = tokenPlace(file, e.GetToken()), e.GetMessage()
		}
		r.failf(at, "not valid YAML: %s", msg)
		return nil
	}
	var body ast.Node
	for _, doc := range f.Docs {
		if doc.Body == nil {
			continue
		}
		if body != nil {
			r.failf(tokenPlace(file, doc.Body.GetToken()), "a second document; a configuration is one")
			return nil
		}
		body = doc.Body
	}
	return body
}

// refused returns the first token that is not let through to the parser.
func refused(tokens token.Tokens) (*token.Token, string) {
	var flow int      // open brackets and braces
	var columns []int // of the block lists and mappings that are open
	for i, t := range tokens {
		column := t.Position.Column
		switch t.Type {
		case token.AnchorType, token.AliasType, token.MergeKeyType:
			return t, "anchors, aliases and merge keys are not part of this format; use defaults"
		case token.TagType, token.DirectiveType:
			return t, "tags and directives are not part of this format"
		case token.MappingKeyType:
			return t, `a key is written "key: value"`
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.MappingValueType, token.SequenceEntryType:
			if flow > 0 {
				break
			}
			if t.Type == token.MappingValueType && i > 0 && tokens[i-1].Position.Line == t.Position.Line {
				column = tokens[i-1].Position.Column
			}
			for len(columns) > 0 && columns[len(columns)-1] >= column {
				columns = columns[:len(columns)-1]
			}
			columns = append(columns, column)
		}
		if flow+len(columns) > maxDepth {
			return t, fmt.Sprintf("nested deeper than %d", maxDepth)
		}
	}
	return nil, ""
}

func tokenPlace(file string, t *token.Token) place {
	if t == nil || t.Position == nil {
		return place{file: file}
	}
	return place{file: file, line: t.Position.Line, column: t.Position.Column}
}

// nodePlace is where a node begins. The token of a mapping is the colon
// behind its first key.
func nodePlace(file string, n ast.Node) place {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		n = m.Values[0].Key
	}
	return tokenPlace(file, n.GetToken())
}
