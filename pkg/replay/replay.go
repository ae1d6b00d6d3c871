// Package replay feeds recorded samples or arrivals through the algorithms of
// this project.
//
// A file is one JSON object: algorithm and params choose and set the
// algorithm, columns names the cells of each of the steps. Times are integers
// in nanoseconds, booleans 0 and 1. The files under testdata/golden of the
// packages controller and pace have this shape.
package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Error is what is wrong with a file, and where.
type Error struct {
	Line, Column int // from 1
	Err          error
}

func (e *Error) Error() string { return fmt.Sprintf("%d:%d: %v", e.Line, e.Column, e.Err) }

func (e *Error) Unwrap() error { return e.Err }

// machine is an algorithm that takes steps.
type machine struct {
	inputs  []string // columns that a step needs
	outputs []string // columns that it yields
	ignored []string // columns that may be there and are left as they are

	// step returns the outputs, each an int, int64, float64 or bool.
	step func(in []int64) ([]any, error)
}

// machines build an algorithm from params, by its name in a file.
var machines = map[string]func(json.RawMessage) (*machine, error){
	"Gradient2Limit":                 limiter("gradient2"),
	"GradientLimit":                  limiter("gradient"),
	"VegasLimit":                     limiter("vegas"),
	"AIMDLimit":                      limiter("aimd"),
	"WindowedLimit":                  windowed,
	"ThrottlingController":           throttling,
	throttlingTwice:                  throttling,
	"WarmUpController":               warmUp,
	"WarmUpRateLimiterController":    warmUpPace,
	"DefaultController grade QPS":    rejectByRate,
	"DefaultController grade THREAD": rejectByCount,
	"DefaultController grade QPS with prioritized requests": func(json.RawMessage) (*machine, error) {
		return nil, errBorrowing
	},
}

var errBorrowing = errors.New("algorithm: borrowing from the next half second is not implemented")

// The golden files of the pacer hold an older class too.
const throttlingTwice = "RateLimiterController (legacy, before e34d55273) and ThrottlingController (current)"

// Run reads a file and writes the same object with the output columns that
// the algorithm computes, whether the file had them or not. Where the file is
// wrong it returns an [*Error] and writes nothing.
func Run(file []byte, out io.Writer) error {
	f, err := parse(file)
	if err != nil {
		return err
	}
	build := machines[f.algorithm]
	if build == nil {
		known := slices.Sorted(maps.Keys(machines))
		return f.fail("algorithm", fmt.Errorf("algorithm: %.80q is none of %s", f.algorithm, strings.Join(known, "; ")))
	}
	m, err := build(f.params)
	switch {
	case errors.Is(err, errBorrowing):
		return f.fail("algorithm", err)
	case err != nil:
		return f.fail("params", err)
	}
	if err := f.run(m); err != nil {
		return err
	}
	var b bytes.Buffer
	f.write(&b)
	_, err = out.Write(b.Bytes())
	return err
}

// run takes every step and puts the outputs into the file.
func (f *file) run(m *machine) error {
	ins := make([]int, len(m.inputs))
	for i, name := range m.inputs {
		if ins[i] = slices.Index(f.columns, name); ins[i] < 0 {
			return f.fail("columns", fmt.Errorf("columns: %s is missing", name))
		}
	}
	for i, name := range f.columns {
		switch {
		case slices.Index(f.columns, name) != i:
			return f.fail("columns", fmt.Errorf("columns: %.80q is there twice", name))
		case !slices.Contains(slices.Concat(m.inputs, m.outputs, m.ignored), name):
			return f.fail("columns", fmt.Errorf("columns: %.80q is not a column of %s", name, f.algorithm))
		}
	}
	given := len(f.columns)
	outs := make([]int, len(m.outputs))
	for i, name := range m.outputs {
		if outs[i] = slices.Index(f.columns, name); outs[i] < 0 {
			outs[i] = len(f.columns)
			f.columns = append(f.columns, name)
		}
	}
	in := make([]int64, len(ins))
	for n := range f.steps {
		s := &f.steps[n]
		if len(s.cells) != given {
			return f.failAt(s.offset, fmt.Errorf("steps[%d]: %d cells, but there are %d columns", n, len(s.cells), given))
		}
		for i, c := range ins {
			v, err := strconv.ParseInt(string(s.cells[c]), 10, 64)
			if err != nil {
				return f.failAt(s.offset, fmt.Errorf("steps[%d]: %s: %.40s is not an integer of 64 bits", n, m.inputs[i], s.cells[c]))
			}
			in[i] = v
		}
		got, err := m.step(in)
		if err != nil {
			return f.failAt(s.offset, fmt.Errorf("steps[%d]: %w", n, err))
		}
		s.cells = append(s.cells, make([]json.RawMessage, len(f.columns)-given)...)
		for i, c := range outs {
			cell, err := format(got[i])
			if err != nil {
				return f.failAt(s.offset, fmt.Errorf("steps[%d]: %s: %w", n, m.outputs[i], err))
			}
			s.cells[c] = cell
		}
	}
	return nil
}

// format writes a number in its shortest form that reads back the same.
func format(v any) (json.RawMessage, error) {
	switch v := v.(type) {
	case bool:
		if v {
			return json.RawMessage("1"), nil
		}
		return json.RawMessage("0"), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%v has no form in JSON", v)
		}
	}
	return json.Marshal(v)
}
