package config

import (
	"maps"
	"regexp"
	"slices"
)

// unsupported are the keys and values of the format that this version does
// not act on, as they are spelled in a rule. They are refused by name rather
// than as a misspelling.
var unsupported = map[string]bool{
	"rule.signal: accept": true,
}

var rulePrefix = regexp.MustCompile(`^(rules\[\d+\]|defaults)\.`)

// isUnsupported looks up a key, or "key: value".
func isUnsupported(key string) bool {
	return unsupported[rulePrefix.ReplaceAllString(key, "rule.")]
}

// Unsupported returns the keys, and "key: value" pairs, that this version
// refuses by name, sorted, with rule for a rule or the defaults.
func Unsupported() []string { return slices.Sorted(maps.Keys(unsupported)) }
