package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// file is a parsed file, with the places of what may be wrong in it.
type file struct {
	text []byte
	at   map[string]int64 // offset of each key's value

	algorithm, scenario, note string
	params                    json.RawMessage
	columns                   []string
	steps                     []step
}

type step struct {
	offset int64
	cells  []json.RawMessage
}

// place turns an offset into a line and a column, both from 1.
func (f *file) failAt(offset int64, err error) error {
	before := f.text[:min(max(offset, 0), int64(len(f.text)))]
	line := bytes.Count(before, []byte("\n"))
	return &Error{Line: line + 1, Column: len(before) - bytes.LastIndexByte(before, '\n'), Err: err}
}

func (f *file) fail(key string, err error) error { return f.failAt(f.at[key], err) }

// parse reads the shape of a file, and leaves params and steps to be judged
// by the algorithm.
func parse(text []byte) (*file, error) {
	f := &file{text: text, at: map[string]int64{}}
	d := json.NewDecoder(bytes.NewReader(text))
	if err := f.open(d, '{'); err != nil {
		return nil, err
	}
	for d.More() {
		if err := f.member(d); err != nil {
			return nil, err
		}
	}
	if err := f.open(d, '}'); err != nil {
		return nil, err
	}
	if rest := bytes.TrimSpace(text[d.InputOffset():]); len(rest) > 0 {
		return nil, f.failAt(f.next(d), errors.New("something follows the object"))
	}
	for _, key := range []string{"algorithm", "columns", "steps"} {
		if _, ok := f.at[key]; !ok {
			return nil, f.failAt(0, fmt.Errorf("%s is missing", key))
		}
	}
	return f, nil
}

// member reads one key of the object with its value.
func (f *file) member(d *json.Decoder) error {
	start := f.next(d)
	token, err := d.Token()
	if err != nil {
		return f.syntax(d, err)
	}
	key, _ := token.(string)
	if _, twice := f.at[key]; twice {
		return f.failAt(start, fmt.Errorf("%.80q is there twice", key))
	}
	f.at[key] = f.next(d)
	var value any
	switch key {
	case "algorithm":
		value = &f.algorithm
	case "scenario":
		value = &f.scenario
	case "note":
		value = &f.note
	case "params":
		value = &f.params
	case "columns":
		value = &f.columns
	case "steps":
		return f.readSteps(d)
	default:
		return f.failAt(start, fmt.Errorf("%.80q is none of algorithm, scenario, note, params, columns, steps", key))
	}
	if err := d.Decode(value); err != nil {
		if e := (*json.UnmarshalTypeError)(nil); errors.As(err, &e) {
			return f.fail(key, fmt.Errorf("%s: not to be a JSON %s", key, e.Value))
		}
		return f.syntax(d, err)
	}
	return nil
}

func (f *file) readSteps(d *json.Decoder) error {
	if err := f.open(d, '['); err != nil {
		return err
	}
	for d.More() {
		s := step{offset: f.next(d)}
		if err := d.Decode(&s.cells); err != nil {
			if e := (*json.UnmarshalTypeError)(nil); errors.As(err, &e) {
				return f.failAt(s.offset, fmt.Errorf("steps[%d]: not to be a JSON %s but an array", len(f.steps), e.Value))
			}
			return f.syntax(d, err)
		}
		f.steps = append(f.steps, s)
	}
	return f.open(d, ']')
}

// open reads a delimiter.
func (f *file) open(d *json.Decoder, want json.Delim) error {
	at := f.next(d)
	token, err := d.Token()
	if err != nil {
		return f.syntax(d, err)
	}
	if token != want {
		return f.failAt(at, fmt.Errorf("%v where %v was expected", token, want))
	}
	return nil
}

// next returns the offset of the next token.
func (f *file) next(d *json.Decoder) int64 {
	i := d.InputOffset()
	for i < int64(len(f.text)) && bytes.IndexByte([]byte(" \t\r\n,:"), f.text[i]) >= 0 {
		i++
	}
	return i
}

func (f *file) syntax(d *json.Decoder, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return f.failAt(int64(len(f.text)), errors.New("the file ends too early"))
	}
	if e := (*json.SyntaxError)(nil); errors.As(err, &e) {
		return f.failAt(max(e.Offset-1, d.InputOffset()), err)
	}
	return f.failAt(f.next(d), err)
}

// write writes the file, one step a line.
func (f *file) write(b *bytes.Buffer) {
	b.WriteByte('{')
	quoted := func(key, value string) {
		fmt.Fprintf(b, "%q:", key)
		e := json.NewEncoder(b)
		e.SetEscapeHTML(false)
		_ = e.Encode(value) // a string always has a form
		b.Truncate(b.Len() - 1)
	}
	quoted("algorithm", f.algorithm)
	for _, t := range []struct{ key, value string }{{"scenario", f.scenario}, {"note", f.note}} {
		if _, given := f.at[t.key]; given {
			b.WriteByte(',')
			quoted(t.key, t.value)
		}
	}
	if f.params != nil {
		b.WriteString(",\n\"params\":")
		b.Write(f.params)
	}
	columns, _ := json.Marshal(f.columns) // of strings: always has a form
	b.WriteString(",\n\"columns\":")
	b.Write(columns)
	b.WriteString(",\n\"steps\":[")
	for i, s := range f.steps {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n[")
		for c, cell := range s.cells {
			if c > 0 {
				b.WriteByte(',')
			}
			b.Write(cell)
		}
		b.WriteByte(']')
	}
	b.WriteString("\n]}\n")
}
