package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"headgate/pkg/controller"
)

// File is what a scenario file holds: a scenario, and the algorithm that is to
// meet it, in the words of a rule's limit.
type File struct {
	Scenario `yaml:",inline"`
	Limit    Limit `yaml:"limit"`
}

// Limit names an algorithm and its settings.
type Limit struct {
	Algorithm         string `yaml:"algorithm"` // default guarded
	controller.Params `yaml:",inline"`
}

// New returns a new instance of the algorithm. Without a seed of its own it
// takes that of the scenario, so that a run can be repeated.
func (l Limit) New(seed uint64) (controller.Algorithm, error) {
	name, p := l.Algorithm, l.Params
	def(&name, "guarded")
	def(&p.Seed, seed)
	return controller.New(name, p)
}

// maxFile is the most bytes of a scenario file.
const maxFile = 1 << 20

// ReadFile reads a scenario file in YAML over the values that f already has.
// A key that does not exist, a value that does not fit or is out of range is
// an error with name, line and column; then f is unchanged.
func (f *File) ReadFile(name string, r io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(data) > maxFile {
		return fmt.Errorf("%s: larger than %d bytes", name, maxFile)
	}
	read := *f
	err = yaml.NewDecoder(bytes.NewReader(data), yaml.Strict()).Decode(&read)
	if err != nil && !errors.Is(err, io.EOF) {
		if e := yaml.Error(nil); errors.As(err, &e) && e.GetToken() != nil {
			at := e.GetToken().Position
			return fmt.Errorf("%s:%d:%d: %s", name, at.Line, at.Column, e.GetMessage())
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := read.Validate(); err != nil {
		return placed(name, data, err)
	}
	*f = read
	return nil
}

// Validate returns everything that is wrong with the scenario or the
// algorithm's settings, joined.
func (f File) Validate() error {
	_, err := f.Limit.New(1)
	return errors.Join(f.Scenario.Validate(), under("limit.", err))
}

// under puts a prefix before the keys of settings that are wrong.
func under(prefix string, err error) error {
	var all []error
	for _, e := range flat(err) {
		if p := (*controller.ParamError)(nil); errors.As(e, &p) {
			e = &KeyError{prefix + p.Key, p.Reason}
		}
		all = append(all, e)
	}
	return errors.Join(all...)
}

// placed says where in the file each key is that an error names.
func placed(name string, data []byte, err error) error {
	file, parseErr := parser.ParseBytes(data, 0)
	if parseErr != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var all []error
	for _, e := range flat(err) {
		k := (*KeyError)(nil)
		if node := ast.Node(nil); errors.As(e, &k) {
			if path, err := yaml.PathString("$." + k.Key); err == nil {
				node, _ = path.FilterFile(file) // a key that is not in the file has no place
			}
			if node != nil {
				at := node.GetToken().Position
				all = append(all, fmt.Errorf("%s:%d:%d: %w", name, at.Line, at.Column, e))
				continue
			}
		}
		all = append(all, fmt.Errorf("%s: %w", name, e))
	}
	return errors.Join(all...)
}

// flat returns the errors that were joined into one.
func flat(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, flat(e)...)
	}
	return all
}
