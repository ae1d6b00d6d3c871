package lab

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

// Slowness is an environment variable that says how many times slower than
// usual the machine may be, 1 or more: 5 for one that is emulated in software.
const Slowness = "HEADGATE_SLOWNESS"

// Allow returns how long something may take on this machine that may take d on
// a usual one, see [Slowness]. It is for the bounds of tests, and not for the
// times that are tested.
func Allow(d time.Duration) time.Duration {
	text := os.Getenv(Slowness)
	if text == "" {
		return d
	}
	factor, err := strconv.ParseFloat(text, 64)
	if err != nil || factor < 1 || factor > 1000 {
		panic(fmt.Sprintf("%s=%q: not a number from 1 to 1000", Slowness, text))
	}
	return time.Duration(float64(d) * factor)
}

// Slow says whether this machine is slower than a usual one, see [Slowness].
func Slow() bool { return Allow(time.Second) > time.Second }
