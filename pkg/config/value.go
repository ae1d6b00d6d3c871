package config

import (
	"encoding"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// value is a node of the file and where it is; or the text of a flag or
// variable that stands in for one.
type value struct {
	node  ast.Node
	at    place
	shape *Shape // not nil: nothing is to be read, but told what would be, see [Schema]
}

// textValue makes a value of what a flag or variable says.
func textValue(text string, at place) value {
	return value{node: ast.String(token.String(text, text, &token.Position{})), at: at}
}

// decoder reads values into a configuration.
type decoder struct {
	report
	file  string
	at    map[string]place // where each key that was read is, by its path
	rules []origin         // where each rule is
}

// origin is where a rule was written.
type origin struct {
	at    place
	ports []place // by the index of Rule.Ports
}

// fields reads a mapping, each key with its function.
func (d *decoder) fields(v value, keys map[string]func(value)) {
	if v.shape != nil {
		v.describeFields(keys)
		return
	}
	switch n := v.node.(type) {
	case *ast.NullNode: // a key with nothing behind it
	case *ast.MappingNode:
		for _, kv := range n.Values {
			d.field(v.at.key, kv, keys)
		}
	default:
		d.failf(v.at, "want keys with values, not %s", kind(v.node))
	}
}

func (d *decoder) field(path string, kv *ast.MappingValueNode, keys map[string]func(value)) {
	name := kv.Key.GetToken().Value
	at := tokenPlace(d.file, kv.Key.GetToken())
	at.key = name
	if path != "" {
		at.key = path + "." + name
	}
	read, ok := keys[name]
	if !ok {
		d.failf(at, "unknown key; %sthe keys here are %s", didYouMean(name, keys), list(keys))
		return
	}
	if _, null := kv.Value.(*ast.NullNode); !null {
		key := at.key
		at = nodePlace(d.file, kv.Value)
		at.key = key
	}
	d.at[at.key] = at
	read(value{node: kv.Value, at: at})
}

// didYouMean names the key that is nearest to what was written, if one is near.
func didYouMean(name string, keys map[string]func(value)) string {
	const far = 3
	best, least := "", min(far, len(name)/2+1)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if n := levenshtein.ComputeDistance(name, key); n < least {
			best, least = key, n
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + best + "? "
}

// items reads a list.
func (d *decoder) items(v value, read func(value)) {
	if v.shape != nil {
		item := new(Shape)
		read(value{shape: item})
		v.describe(Shape{Kind: KindList, Items: item})
		return
	}
	switch n := v.node.(type) {
	case *ast.NullNode:
	case *ast.SequenceNode:
		for i, item := range n.Values {
			if d.full() {
				return
			}
			at := nodePlace(d.file, item)
			at.key = v.at.key + "[" + strconv.Itoa(i) + "]"
			d.at[at.key] = at
			read(value{node: item, at: at})
		}
	default:
		d.failf(v.at, "want a list, not %s", kind(v.node))
	}
}

// scalar returns the text of a single value.
func (d *decoder) scalar(v value, want string) (string, bool) {
	if v.describe(Shape{Kind: KindText}) {
		return "", false
	}
	switch n := v.node.(type) {
	case *ast.NullNode:
		d.failf(v.at, "has no value; want %s", want)
		return "", false
	case *ast.LiteralNode:
		return n.Value.Value, true
	case ast.ScalarNode:
		return n.GetToken().Value, true
	}
	d.failf(v.at, "want %s, not %s", want, kind(v.node))
	return "", false
}

func (d *decoder) text(v value, dst *string) {
	if s, ok := d.scalar(v, "text"); ok {
		*dst = s
	}
}

// number reads a whole number in decimal, lo to hi.
func (d *decoder) number(v value, lo, hi int) (int, bool) {
	if v.describe(Shape{Kind: KindWhole, Min: float64(lo), Max: float64(hi)}) {
		return 0, false
	}
	s, ok := d.scalar(v, "a whole number")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	if err != nil || s[0] == '+' || len(s) > 1 && s[0] == '0' {
		d.failf(v.at, "%s is not a whole number in decimal from %d to %d", quote(s), lo, hi)
		return 0, false
	}
	if n < lo || n > hi {
		d.failf(v.at, "%d is not from %d to %d", n, lo, hi)
		return 0, false
	}
	return n, true
}

func (d *decoder) float(v value) (float64, bool) {
	if v.describe(Shape{Kind: KindNumber}) {
		return 0, false
	}
	s, ok := d.scalar(v, "a number")
	if !ok {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		d.failf(v.at, "%s is not a number", quote(s))
		return 0, false
	}
	return f, true
}

func (d *decoder) boolean(v value, dst *bool) {
	if v.describe(Shape{Kind: KindBoolean}) {
		return
	}
	s, ok := d.scalar(v, "true or false")
	if !ok {
		return
	}
	if s != "true" && s != "false" {
		d.failf(v.at, "%s is neither true nor false", quote(s))
		return
	}
	*dst = s == "true"
}

func (d *decoder) duration(v value) (time.Duration, bool) {
	if v.describe(Shape{Kind: KindDuration}) {
		return 0, false
	}
	s, ok := d.scalar(v, "a duration such as 100ms")
	if !ok {
		return 0, false
	}
	t, err := time.ParseDuration(s)
	if err != nil {
		d.failf(v.at, "%s is not a duration such as 100ms, 2s or 1m30s", quote(s))
		return 0, false
	}
	return t, true
}

// span reads a duration from lo to hi.
func (d *decoder) span(v value, dst *time.Duration, lo, hi time.Duration) bool {
	if v.describe(Shape{Kind: KindDuration, Least: lo, Most: hi}) {
		return false
	}
	t, ok := d.duration(v)
	if ok && (t < lo || t > hi) {
		d.failf(v.at, "%v is not from %v to %v", t, lo, hi)
		ok = false
	}
	if ok {
		*dst = t
	}
	return ok
}

// unmarshal reads a type that has a text form of its own.
func (d *decoder) unmarshal(v value, dst encoding.TextUnmarshaler) bool {
	if v.describe(Shape{Kind: KindAmount}) {
		return false
	}
	s, ok := d.scalar(v, "a single value")
	if !ok {
		return false
	}
	if err := dst.UnmarshalText([]byte(s)); err != nil {
		d.failf(v.at, "%v", err)
		return false
	}
	return true
}

// choice reads one of some words.
func choice[T ~string](d *decoder, v value, dst *T, words ...T) {
	names := make([]string, len(words))
	for i, w := range words {
		names[i] = string(w)
	}
	if v.describe(Shape{Kind: KindWord, Words: names}) {
		return
	}
	s, ok := d.scalar(v, "one word")
	if !ok {
		return
	}
	if !slices.Contains(words, T(s)) {
		d.failf(v.at, "%s is not one of: %s", quote(s), strings.Join(names, ", "))
		return
	}
	*dst = T(s)
}

// kind names what a node is, for errors.
func kind(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode:
		return "keys with values"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	}
	return "a single value"
}

// quote shows what was written, shortened, with nothing a terminal acts on.
func quote(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "..."
	}
	return strconv.Quote(s)
}

func list(keys map[string]func(value)) string {
	var names []string
	for k := range keys {
		names = append(names, k)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
