package controller

// Reason says why a limit was changed last.
type Reason string

// The reasons, in the order in which they usually come.
const (
	ReasonNone     Reason = ""           // it never was
	ReasonStart    Reason = "start"      // no queue was seen yet
	ReasonGrowth   Reason = "growth"     // no queue, and the limit is in use
	ReasonGradient Reason = "gradient"   // a queue stands
	ReasonRecovery Reason = "recovery"   // the queue is gone
	ReasonProbe    Reason = "probe"      // the baseline is measured
	ReasonProbed   Reason = "probed"     // that is over
	ReasonLower    Reason = "lower_base" // the service became faster than was thought
	ReasonBurst    Reason = "burst"      // the allowance above the limit is there
	ReasonRefusal  Reason = "refusal"    // or is spent
	ReasonDither   Reason = "dither"     // moved to see what it changes
	ReasonStuck    Reason = "stuck"      // nothing finished for a second
	ReasonDropped  Reason = "dropped"    // units were lost
	ReasonTimeout  Reason = "timeout"    // a unit took longer than it may
)

var reasonWords = map[Reason]string{
	ReasonNone:     "it has not changed",
	ReasonStart:    "no queue was ever seen, so it grows as fast as the service completes",
	ReasonGrowth:   "no queue stands and the limit is in use, so it grows",
	ReasonGradient: "a queue stands: units take longer than when none waits, so it shrinks",
	ReasonRecovery: "the queue is gone, so it comes back to where it was",
	ReasonProbe:    "lowered for a moment, to time a few units that nothing waits in front of",
	ReasonProbed:   "the probe is over",
	ReasonLower:    "the service became faster than was thought, and needs fewer at once",
	ReasonBurst:    "nothing was refused for a while: a burst may go above the limit, the further the more is completed",
	ReasonRefusal:  "the allowance for bursts is spent",
	ReasonDither:   "moved a little up and down, to see whether more at once completes more",
	ReasonStuck:    "nothing finished for a second while others were refused, so one more is let in",
	ReasonDropped:  "units were lost, so it shrinks",
	ReasonTimeout:  "units took longer than the timeout, so it shrinks",
}

// Words says it for people, in half a sentence. A reason that is none of this
// package's stands for itself.
func (r Reason) Words() string {
	if w, ok := reasonWords[r]; ok {
		return w
	}
	return string(r)
}
