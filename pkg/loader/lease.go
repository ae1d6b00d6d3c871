package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// LeaseLeft says for how long the limits that an agent has left under a state
// directory still hold; below 0 since when they do not. ok is false where
// nothing of an agent is there.
func LeaseLeft(dir string) (left time.Duration, ok bool, err error) {
	path := filepath.Join(dir, liveName, mapsName, headgateMapConfs)
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("state of an agent: %w", err)
	}
	defer m.Close()
	var id uint32
	var conf headgateTargetConf
	var until uint64
	for all := m.Iterate(); ; {
		if !all.Next(&id, &conf) {
			if err := all.Err(); err != nil {
				return 0, false, fmt.Errorf("state of an agent: %w", err)
			}
			break
		}
		until = max(until, conf.Lease)
	}
	if until == 0 {
		return 0, false, nil
	}
	now, err := clock()
	if err != nil {
		return 0, false, err
	}
	return time.Duration(until) - now, true, nil
}

// clock is CLOCK_MONOTONIC, on which all times in the maps are.
func clock() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("clock: %w", err)
	}
	return time.Duration(now.Nano()), nil
}
