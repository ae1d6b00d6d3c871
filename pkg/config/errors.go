package config

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
)

// maxReported bounds the errors of one file, so that a file which is no
// configuration at all does not fill the screen.
const maxReported = 100

// excerptWidth is the most characters of a line that an error quotes.
const excerptWidth = 76

// Error is one thing that is wrong with a configuration.
type Error struct {
	File         string // the file; or the flag or variable, and then Line is 0
	Line, Column int    // from 1, the column in characters
	Key          string // the path of the key, for example rules[0].limit.min; may be empty
	Msg          string
	Excerpt      string // the line, and a mark under the column; may be empty
}

// Error returns file:line:column: key: message, and under it the excerpt.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(place{file: e.File, line: e.Line, column: e.Column}.String())
	b.WriteString(": ")
	if e.Key != "" {
		b.WriteString(e.Key + ": ")
	}
	b.WriteString(e.Msg)
	if e.Excerpt != "" {
		b.WriteString("\n" + e.Excerpt)
	}
	return b.String()
}

// Errors is everything that is wrong with a configuration, in the order of
// the file.
type Errors []*Error

func (es Errors) Error() string {
	var b strings.Builder
	for i, e := range es {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(e.Error())
	}
	return b.String()
}

// Unwrap lets errors.As find each one.
func (es Errors) Unwrap() []error {
	all := make([]error, len(es))
	for i, e := range es {
		all[i] = e
	}
	return all
}

// place is where a value was written.
type place struct {
	file         string
	line, column int    // 0 when it is not in a file
	key          string // the path of the key, as it was written
}

func (p place) String() string {
	if p.line == 0 {
		return p.file
	}
	return fmt.Sprintf("%s:%d:%d", p.file, p.line, p.column)
}

// report gathers the errors of one configuration.
type report struct {
	lines []string // of the file, for excerpts
	errs  Errors
}

// full reports whether there are as many errors as are shown.
func (r *report) full() bool { return len(r.errs) > maxReported }

func (r *report) failf(at place, format string, args ...any) {
	if r.full() {
		return
	}
	if len(r.errs) == maxReported {
		r.errs = append(r.errs, &Error{File: at.file, Line: math.MaxInt, Msg: "has more errors than are shown"})
		return
	}
	r.errs = append(r.errs, &Error{
		File:    at.file,
		Line:    at.line,
		Column:  at.column,
		Key:     at.key,
		Msg:     fmt.Sprintf(format, args...),
		Excerpt: r.excerpt(at),
	})
}

// err returns what was gathered, sorted, or nil.
func (r *report) err() error {
	if len(r.errs) == 0 {
		return nil
	}
	slices.SortStableFunc(r.errs, func(a, b *Error) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	// Several rules may find the same fault in the defaults.
	r.errs = slices.CompactFunc(r.errs, func(a, b *Error) bool { return *a == *b })
	if r.full() {
		r.errs[len(r.errs)-1].Line = 0
	}
	return r.errs
}

// excerpt quotes the line of a place with a mark under its column. Whatever a
// terminal would act on is replaced.
func (r *report) excerpt(at place) string {
	if at.line < 1 || at.line > len(r.lines) || at.column < 1 {
		return ""
	}
	line := []rune(strings.ToValidUTF8(r.lines[at.line-1], "?"))
	mark := min(at.column-1, len(line))
	first := 0
	if len(line) > excerptWidth {
		first = min(max(mark-excerptWidth/2, 0), len(line)-excerptWidth)
		line = line[first : first+excerptWidth]
	}
	for i, c := range line {
		if !unicode.IsPrint(c) {
			line[i] = ' '
		}
	}
	margin := fmt.Sprintf("%5d | ", at.line)
	return margin + strings.TrimRight(string(line), " ") + "\n" +
		strings.Repeat(" ", len(margin)-2) + "| " + strings.Repeat(" ", mark-first) + "^"
}
