package pace

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Ramp says how a cold target is brought up to its rate.
type Ramp struct {
	// Rate is what the target takes when it is warm, in units a second, above 0.
	Rate float64

	// Period is about how long the way up takes, from 1 s.
	Period time.Duration

	// ColdFactor is how many times slower the coldest is, from 2; 0 means 3.
	ColdFactor int
}

// bucket of tokens that says how cold a target is, as Sentinel has it: tokens
// gather while little passes, and the more there are, the slower it goes.
// Once a second it loses what passed in the second before. Under a third of
// the warm rate (one over the cold factor, rounded down) tokens gather even
// above the mark, so below 3 units a second a target never cools down again.
type tokens struct {
	rate   float64
	cold   int64
	mark   int64   // above it the target is cold
	most   int64   // the coldest
	slope  float64 // s of interval for each token above the mark
	stored int64
	filled time.Duration // whole second of the last filling
	begun  bool
}

func newTokens(r Ramp) (tokens, error) {
	if r.ColdFactor == 0 {
		r.ColdFactor = 3
	}
	switch {
	case !(r.Rate > 0) || r.Rate > MaxRate:
		return tokens{}, fmt.Errorf("rate: %v is not above 0 and up to %v", r.Rate, MaxRate)
	case r.Period < time.Second || r.Period > 24*time.Hour:
		return tokens{}, fmt.Errorf("period: %v is not from 1s to 24h", r.Period)
	case r.ColdFactor < 2 || r.ColdFactor > 1000:
		return tokens{}, fmt.Errorf("cold_factor: %d is not from 2 to 1000", r.ColdFactor)
	}
	total := r.Period.Seconds() * r.Rate
	t := tokens{rate: r.Rate, cold: int64(r.ColdFactor)}
	t.mark = int64(total) / (t.cold - 1)
	t.most = t.mark + int64(2*total/(1+float64(t.cold)))
	if t.most > t.mark {
		t.slope = float64(t.cold-1) / t.rate / float64(t.most-t.mark)
	}
	return t, nil
}

// fill brings the tokens up to date, once a second. passed is what passed in
// the second before.
func (t *tokens) fill(now time.Duration, passed int64) {
	now = max(now, 0).Truncate(time.Second)
	if t.begun && now <= t.filled {
		return
	}
	switch {
	case !t.begun:
		if t.mark > 0 {
			t.stored = t.most // cold
		}
	case t.stored < t.mark, t.stored > t.mark && passed < int64(t.rate)/t.cold:
		ms := float64((now - t.filled).Milliseconds())
		gained := float64(t.stored) + float64(ms*t.rate)/1000
		t.stored = int64(min(gained, float64(t.most)))
	}
	t.stored = max(min(t.stored, t.most)-passed, 0)
	t.filled = now
	t.begun = true
}

// rateNow returns the rate that the target takes now, in units a second.
func (t *tokens) rateNow() float64 {
	if t.stored < t.mark {
		return t.rate
	}
	above := float64(float64(t.stored-t.mark) * t.slope)
	return math.Nextafter(1/(above+1/t.rate), math.Inf(1))
}

// WarmUp refuses what is above the rate that the target takes now: Sentinel's
// WarmUpController.
type WarmUp struct {
	tokens  tokens
	halves  meter
	seconds meter
}

// NewWarmUp returns a WarmUp for a cold target.
func NewWarmUp(r Ramp) (*WarmUp, error) {
	t, err := newTokens(r)
	if err != nil {
		return nil, err
	}
	return &WarmUp{tokens: t, halves: newMeter(half, 2), seconds: newMeter(time.Second, 2)}, nil
}

// Take asks for n units at now. Times do not go back.
func (w *WarmUp) Take(now time.Duration, n int) (ok bool) {
	w.tokens.fill(now, w.seconds.back(now, 1))
	if float64(w.halves.lately(now)+int64(n)) > w.tokens.rateNow() {
		return false
	}
	w.halves.add(now, n)
	w.seconds.add(now, n)
	return true
}

// Stored returns how many tokens there are: the more, the colder.
func (w *WarmUp) Stored() int64 { return w.tokens.stored }

// WarmPacer paces at the rate that the target takes now: Sentinel's
// WarmUpRateLimiterController.
type WarmPacer struct {
	tokens  tokens
	pacer   *Pacer
	seconds meter
}

// maxWarmWait bounds the wait of a WarmPacer, which counts the passes of each
// second that one may be held into.
const maxWarmWait = time.Hour

// NewWarmPacer returns a WarmPacer for a cold target. maxWait is the longest
// wait that is still accepted, 0 to 1 h, and quantum what times are counted
// in: 1 ns, or 1 ms to round as Sentinel does.
func NewWarmPacer(r Ramp, maxWait, quantum time.Duration) (*WarmPacer, error) {
	if maxWait > maxWarmWait {
		return nil, fmt.Errorf("max_wait: %v is more than %v", maxWait, maxWarmWait)
	}
	if quantum < 1 || quantum > time.Second {
		return nil, errors.New("quantum: not from 1ns to 1s")
	}
	t, err := newTokens(r)
	if err != nil {
		return nil, err
	}
	p, err := NewPacer(Schedule{Count: r.Rate, MaxWait: maxWait, Quantum: quantum})
	if err != nil {
		return nil, err
	}
	return &WarmPacer{tokens: t, pacer: p, seconds: newMeter(time.Second, int(maxWait/time.Second)+3)}, nil
}

// Take asks for n units at now. When ok, they pass after the wait. Times do
// not go back.
func (w *WarmPacer) Take(now time.Duration, n int) (wait time.Duration, ok bool) {
	w.tokens.fill(now, w.seconds.back(now, 1))
	cost := roundHalfUp(float64(n) / w.tokens.rateNow() * w.pacer.period)
	if wait, ok = w.pacer.take(now, cost); ok {
		w.seconds.add(now+wait, n)
	}
	return wait, ok
}

// Stored returns how many tokens there are: the more, the colder.
func (w *WarmPacer) Stored() int64 { return w.tokens.stored }

// RampRate tells at which rate a target is to be paced as it warms up, where
// the pacing itself is done elsewhere.
type RampRate struct{ tokens tokens }

// NewRampRate returns a RampRate for a cold target.
func NewRampRate(r Ramp) (*RampRate, error) {
	t, err := newTokens(r)
	if err != nil {
		return nil, err
	}
	return &RampRate{tokens: t}, nil
}

// Rate returns the rate at now, in units a second. It looks at passed, the
// units that passed in the whole second before now, once in each second.
func (r *RampRate) Rate(now time.Duration, passed int) float64 {
	r.tokens.fill(now, int64(passed))
	return r.tokens.rateNow()
}
