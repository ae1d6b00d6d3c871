package load

import (
	"math/rand/v2"
	"time"
)

// Step is a stretch of a schedule with one arrival rate.
type Step struct {
	Rate float64 // arrivals per second; 0 is a pause
	For  time.Duration
}

// Arrivals yields the times of arrival in ascending order, counted from the
// beginning of the run, and false after the last one.
type Arrivals func() (at time.Duration, ok bool)

// Uniform returns arrivals at even distances.
func Uniform(steps ...Step) Arrivals {
	return arrivals(func() float64 { return 1 }, steps)
}

// Poisson returns arrivals that are independent of each other, as those of
// many clients are. The same seed gives the same arrivals.
func Poisson(seed uint64, steps ...Step) Arrivals {
	random := rand.New(rand.NewPCG(seed, 0))
	return arrivals(random.ExpFloat64, steps)
}

// arrivals turns gaps with mean 1 into times: a step of rate r and length d
// holds r*d of them, and a gap that is cut by the end of a step goes on in the
// next one at the next one's rate.
func arrivals(gap func() float64, steps []Step) Arrivals {
	var begin time.Duration // of the first of steps
	now := 0.0              // seconds since begin
	return func() (time.Duration, bool) {
		left := gap()
		for len(steps) > 0 {
			length := steps[0].For.Seconds()
			if rate := steps[0].Rate; rate > 0 {
				if at := now + left/rate; at < length {
					now = at
					return begin + time.Duration(at*float64(time.Second)), true
				}
				left -= (length - now) * rate
			}
			begin += steps[0].For
			now = 0
			steps = steps[1:]
		}
		return 0, false
	}
}
