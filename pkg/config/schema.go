package config

import (
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Shape is what a value of the configuration may be, for editors. It comes from
// the functions that read the file: each says what it would read when it is
// given a value that is not there, so that both cannot differ.
type Shape struct {
	Kind     Kind
	Words    []string // of KindWord
	Min, Max float64  // of numbers, whole or not, where Min < Max
	Least    time.Duration
	Most     time.Duration     // of durations, where Least < Most
	Keys     map[string]*Shape // of KindKeys
	Items    *Shape            // of KindList; of KindMap, each value
	Any      []*Shape          // of KindAny
}

// Kind is a kind of value.
type Kind string

const (
	KindNone     Kind = "" // nothing goes here
	KindKeys     Kind = "keys"
	KindMap      Kind = "map" // of keys that the user chooses
	KindList     Kind = "list"
	KindWhole    Kind = "whole number"
	KindNumber   Kind = "number"
	KindBoolean  Kind = "boolean"
	KindDuration Kind = "duration"
	KindWord     Kind = "word"
	KindText     Kind = "text"
	KindAmount   Kind = "amount" // text or a number
	KindAny      Kind = "any"    // one of several
)

// Schema returns what a whole file may be.
func Schema() *Shape {
	d, s, base := &decoder{at: map[string]place{}}, new(Shape), DefaultRule()
	d.config(value{shape: s}, Default(), &base)
	return s
}

// describe says what would be read, if that is what is asked for.
func (v value) describe(s Shape) bool {
	if v.shape == nil {
		return false
	}
	*v.shape = s
	return true
}

// either reads a mapping with one function and all else with the other.
func (d *decoder) either(v value, mapping, other func(value)) {
	if v.shape != nil {
		a, b := new(Shape), new(Shape)
		other(value{shape: a})
		mapping(value{shape: b})
		v.describe(Shape{Kind: KindAny, Any: []*Shape{a, b}})
		return
	}
	if _, ok := v.node.(*ast.MappingNode); ok {
		mapping(v)
	} else {
		other(v)
	}
}

// describeFields describes a mapping by its keys.
func (v value) describeFields(keys map[string]func(value)) {
	s := Shape{Kind: KindKeys, Keys: make(map[string]*Shape)}
	for key, read := range keys {
		k := new(Shape)
		read(value{shape: k})
		s.Keys[key] = k
	}
	v.describe(s)
}
