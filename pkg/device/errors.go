package device

import (
	"errors"

	"golang.org/x/sys/unix"
)

// class says what to do about an error.
type class int

const (
	none   class = iota
	gone         // the device is: nothing to do
	unable       // the device cannot have a program: nothing to do either
	retry        // later
	fatal        // what fails for this device fails for all
)

// classify sorts an error of attaching or detaching.
func classify(err error) class {
	switch {
	case err == nil:
		return none
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return gone
	case errors.Is(err, errSharedBlock):
		return retry // its owner may undo it
	case errors.Is(err, unix.EOPNOTSUPP):
		return unable
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, ErrNoHook):
		return fatal
	default:
		// Short of memory, a revision that changed under us, a qdisc that
		// somebody removed just now, a full chain.
		return retry
	}
}
