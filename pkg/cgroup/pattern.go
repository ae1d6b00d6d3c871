// Package cgroup finds cgroups by pattern or by the pod that they are of, and
// the network namespaces of the processes in them.
package cgroup

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// maxPattern bounds the length of a pattern, and maxDeep how many ** are in it.
const (
	maxPattern = 4096
	maxDeep    = 8
)

// anyDepth stands for any number of directories, none included.
const anyDepth = "**"

// Pattern names cgroups by their path below the root of the hierarchy, such as
// system.slice/nginx.service. In it * stands for any part of one name, ? for any
// character, [a-z] for one of some, a backslash takes the meaning from the next
// character, and ** as a whole name stands for any number of names.
type Pattern struct {
	text  string
	names []string
}

// ParsePattern reads a pattern. A slash before or behind it means nothing.
func ParsePattern(text string) (Pattern, error) {
	p := Pattern{text: strings.Trim(text, "/")}
	if p.text == "" {
		return Pattern{}, errors.New("names no cgroup: the root, which has every process below it, is none to protect")
	}
	if len(p.text) > maxPattern {
		return Pattern{}, fmt.Errorf("is longer than %d bytes", maxPattern)
	}
	deep := 0
	for _, name := range strings.Split(p.text, "/") {
		switch {
		case name == "" || name == "." || name == "..":
			return Pattern{}, fmt.Errorf("has a name %q in it", name)
		case name == anyDepth:
			if n := len(p.names); n > 0 && p.names[n-1] == anyDepth {
				continue // the same as one
			}
			deep++
		case strings.Contains(name, anyDepth):
			return Pattern{}, fmt.Errorf("%q: ** stands for whole names only", name)
		default:
			if _, err := path.Match(name, ""); err != nil {
				return Pattern{}, fmt.Errorf("%q: %w", name, err)
			}
		}
		p.names = append(p.names, name)
	}
	if deep > maxDeep {
		return Pattern{}, fmt.Errorf("has more than %d **", maxDeep)
	}
	return p, nil
}

// String returns the pattern as it was written, without slashes around it.
func (p Pattern) String() string { return p.text }

// Match says whether a path below the root is meant.
func (p Pattern) Match(cgroup string) bool {
	names := strings.Split(strings.Trim(cgroup, "/"), "/")
	if names[0] == "" {
		return false
	}
	// at are the places in the pattern where what has been read may have led to.
	at := skip(p.names, []int{0})
	for _, name := range names {
		at = p.step(at, name)
	}
	return slices.Contains(at, len(p.names))
}

// step returns the places in the pattern that a name leads to.
func (p Pattern) step(at []int, name string) []int {
	var next []int
	for _, i := range at {
		if i == len(p.names) {
			continue
		}
		if p.names[i] == anyDepth {
			next = append(next, i)
		} else if ok, _ := path.Match(p.names[i], name); ok {
			next = append(next, i+1)
		}
	}
	return skip(p.names, next)
}

// skip adds the places that are reached when ** stands for no name.
func skip(names []string, at []int) []int {
	var all []int
	for _, i := range at {
		for ; ; i++ {
			if !slices.Contains(all, i) {
				all = append(all, i)
			}
			if i == len(names) || names[i] != anyDepth {
				break
			}
		}
	}
	return all
}

// literal says whether a name stands for itself alone.
func literal(name string) bool { return !strings.ContainsAny(name, `*?[\`) }
