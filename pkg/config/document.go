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

	// maxKeys is how many keys a mapping may have; the format has none with 40.
	// The parser's time grows with the square of their number.
	maxKeys = 256
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
	// What is open: block lists and mappings by their columns, inner ones further
	// to the right; and brackets and braces.
	var blocks, flows []opened
	for i, t := range tokens {
		switch t.Type {
		case token.AnchorType, token.AliasType, token.MergeKeyType:
			return t, "anchors, aliases and merge keys are not part of this format; use defaults"
		case token.TagType, token.DirectiveType:
			return t, "tags and directives are not part of this format"
		case token.MappingKeyType:
			return t, `a key is written "key: value"`
		case token.SequenceStartType, token.MappingStartType:
			flows = append(flows, opened{})
		case token.SequenceEndType, token.MappingEndType:
			flows = flows[:max(len(flows)-1, 0)]
		case token.MappingValueType, token.SequenceEntryType:
			key := t
			if t.Type == token.MappingValueType && i > 0 && tokens[i-1].Position.Line == t.Position.Line {
				key = tokens[i-1]
			}
			in := &flows
			if len(flows) == 0 {
				in = &blocks
				column := key.Position.Column
				for len(blocks) > 0 && blocks[len(blocks)-1].column > column {
					blocks = blocks[:len(blocks)-1]
				}
				if len(blocks) == 0 || blocks[len(blocks)-1].column < column {
					blocks = append(blocks, opened{column: column})
				}
			}
			if t.Type == token.SequenceEntryType {
				break
			}
			innermost := &(*in)[len(*in)-1]
			if innermost.keys++; innermost.keys > maxKeys {
				return key, fmt.Sprintf("more than %d keys in one mapping", maxKeys)
			}
		}
		if len(flows)+len(blocks) > maxDepth {
			return t, fmt.Sprintf("nested deeper than %d", maxDepth)
		}
	}
	return nil, ""
}

// opened is a list or mapping that has not ended yet.
type opened struct{ column, keys int }

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
