package pace

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// timer is a timerfd: the kernel's clock and its precision. Go's own timers
// are up to 1 ms late in a process that has nothing else to do.
type timer struct {
	fd    int
	file  *os.File
	armed time.Duration // never: not
}

func newTimer() (*timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timer: %w", err)
	}
	return &timer{fd: fd, file: os.NewFile(uintptr(fd), "timerfd"), armed: never}, nil
}

// arm has wait return at that time, or earlier where it is armed already.
func (t *timer) arm(at time.Duration) error {
	if at >= t.armed {
		return nil
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(at, 1)))}
	if err := unix.TimerfdSettime(t.fd, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		return fmt.Errorf("timer: %w", err)
	}
	t.armed = at
	return nil
}

// wait waits until the timer has fired, and returns false when it is closed.
func (t *timer) wait() bool {
	var fired [8]byte
	for {
		_, err := t.file.Read(fired[:])
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}

func (t *timer) close() error { return t.file.Close() }

// monotonic is the clock that the kernel's programs use.
func monotonic() time.Duration {
	var ts unix.Timespec
	// It fails only for a clock that does not exist.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}
