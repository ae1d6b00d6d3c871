package control

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Name is what a target can be called by.
type Name struct {
	Rule  string
	Scope string // as in its status
	Port  uint16
}

// String returns SCOPE/PORT.
func (n Name) String() string { return n.Scope + "/" + strconv.Itoa(int(n.Port)) }

// of returns RULE:PORT, as events and the log say it.
func (n Name) of() string { return n.Rule + ":" + strconv.Itoa(int(n.Port)) }

// Find returns those targets that a text stands for, which is as in
// [Limit.Target]; name says what one is called. [ErrUnknown] when it is none; and
// with those that have the port [ErrAmbiguous] when they are several.
func Find[T any](targets []T, name func(T) Name, text string) ([]T, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	byPort := err == nil
	var found []T
	var places, all []string
	for _, t := range targets {
		n := name(t)
		all = append(all, n.String())
		if n.String() == text || byPort && uint64(n.Port) == port || !byPort && (n.Rule == text || n.of() == text) {
			found, places = append(found, t), append(places, n.String())
		}
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("%w: %.300q is neither a protected port, nor the name of a rule, nor SCOPE/PORT; protected: %s", ErrUnknown, text, list(all, ", "))
	case byPort && len(found) > 1:
		return found, fmt.Errorf("%w has the port %s: say which, %s", ErrAmbiguous, text, Either(places))
	}
	return found, nil
}

// Either names places of which one has to be said.
func Either(places []string) string { return list(places, " or ") }

func list(places []string, between string) string {
	if len(places) == 0 {
		return "none"
	}
	places = slices.Sorted(slices.Values(places))
	const most = 10
	if len(places) > most {
		places = append(places[:most], "...")
	}
	return strings.Join(places, between)
}
