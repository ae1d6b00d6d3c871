package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Scenario is a server, who calls on it, and the gate between them. The yaml
// names are those of a scenario file. [Scenario.Validate] lists what is wrong
// with one; fields left at zero take the defaults given here.
type Scenario struct {
	Name string `yaml:"name"`

	// Duration is the simulated time; up to 24 h, default 60 s.
	Duration time.Duration `yaml:"duration"`

	// From and To bound the arrivals that the totals of the result count;
	// defaults 0 and Duration.
	From time.Duration `yaml:"from"`
	To   time.Duration `yaml:"to"`

	// Seed makes runs repeatable: the same seed is the same run. Default 1.
	Seed uint64 `yaml:"seed"`

	// Tick is the time between decisions of the algorithm; 1 ms to 10 s,
	// default 100 ms.
	Tick time.Duration `yaml:"tick"`

	// Deadline is the time, in multiples of the mean service time of the
	// unit's class, within which a unit must finish to count as good;
	// default 10.
	Deadline float64 `yaml:"deadline"`

	Server  Server  `yaml:"server"`
	Load    Load    `yaml:"load"`
	Clients Clients `yaml:"clients"`
	Retry   Retry   `yaml:"retry"`
	Gate    Gate    `yaml:"gate"`
}

// Server is what the gate protects.
type Server struct {
	// Workers is the number of units served at once; at least 1, default 16.
	Workers int `yaml:"workers"`

	// Service is the mean time a worker needs for a unit; default 20 ms.
	Service time.Duration `yaml:"service"`

	// Distribution of the service time: constant, exponential (default),
	// lognormal or pareto. Shape is the sigma of lognormal (default 1) or the
	// alpha of pareto (more than 1, default 1.5).
	Distribution string  `yaml:"distribution"`
	Shape        float64 `yaml:"shape"`

	// Discipline is fifo (default: a unit waits for a worker) or sharing (all
	// units share the workers equally).
	Discipline string `yaml:"discipline"`

	// Classes are kinds of units, for service times with two or more modes.
	Classes []Class `yaml:"classes"`

	// Contention slows every unit down as more are in flight.
	Contention Contention `yaml:"contention"`

	// Changes of the server over time, in order.
	Changes []Change `yaml:"changes"`

	// Stalls are regular pauses in which nothing is served.
	Stalls Stalls `yaml:"stalls"`

	// Backlog is the most units in flight that the server itself takes; more
	// are lost as if rejected. Default 4096.
	Backlog int `yaml:"backlog"`
}

// Class is a kind of unit.
type Class struct {
	Share float64 `yaml:"share"` // of the arrivals; shares add up to 1
	Times float64 `yaml:"times"` // service time in multiples of Server.Service
}

// Contention makes service 1 + Factor f(n/workers) times slower with n units
// in flight, where f(x) is max(0, x-From)^Power, or ln(max(1, x)) when Log.
type Contention struct {
	Factor float64 `yaml:"factor"` // default 0: none
	From   float64 `yaml:"from"`   // default 1
	Power  float64 `yaml:"power"`  // default 1
	Log    bool    `yaml:"log"`
}

// Change takes effect at At and stays; fields at zero change nothing.
type Change struct {
	At       time.Duration `yaml:"at"`
	Speed    float64       `yaml:"speed"` // 1 is the speed at the start
	Workers  int           `yaml:"workers"`
	Shares   []float64     `yaml:"shares"`   // of the classes
	Deadline float64       `yaml:"deadline"` // in multiples of the deadline at the start
}

// Stalls of length For begin at Every, 2 Every and so on.
type Stalls struct {
	Every time.Duration `yaml:"every"`
	For   time.Duration `yaml:"for"`
}

// Load is the open-loop part of the arrivals: a Poisson process that takes no
// notice of what becomes of its units.
type Load struct {
	// Rate of arrivals a second, or Capacity in multiples of what the server
	// finishes a second at its start; one of them, or neither for none.
	Rate     float64 `yaml:"rate"`
	Capacity float64 `yaml:"capacity"`

	// Profile multiplies the rate over time; the first value holds before it.
	Profile []Point `yaml:"profile"`

	// Repeat starts the profile again after so long; default 0: never.
	Repeat time.Duration `yaml:"repeat"`

	// Batch is the mean number of units that arrive at once (geometric);
	// default 1. The rate counts units.
	Batch float64 `yaml:"batch"`
}

// Point is a value from a time on. With Ramp the value moves there in a
// straight line from the point before.
type Point struct {
	At    time.Duration `yaml:"at"`
	Times float64       `yaml:"times"`
	Ramp  bool          `yaml:"ramp"`
}

// Clients are the closed-loop part: each waits for its answer, thinks for an
// exponential time, and calls again.
type Clients struct {
	Count int           `yaml:"count"`
	Think time.Duration `yaml:"think"`
}

// Retry is what a client does when it is rejected, or has waited too long.
type Retry struct {
	Times   int           `yaml:"times"`   // attempts after the first; default 0
	After   time.Duration `yaml:"after"`   // the first pause
	Factor  float64       `yaml:"factor"`  // each further pause is so much longer; default 1
	Jitter  float64       `yaml:"jitter"`  // spread of a pause, as a share of it; default 0.2
	Timeout time.Duration `yaml:"timeout"` // the wait after which it tries again; default 0: never
}

// Gate is what the gate does with units over the limit.
type Gate struct {
	// Reject is reset (default: the client learns at once) or drop (its
	// kernel sends the SYN again 1, 3 and 7 s after the first).
	Reject string `yaml:"reject"`

	// Hold lets units wait for a slot; MaxWait 0 (default) rejects at once.
	Hold Hold `yaml:"hold"`

	// Partitions are guaranteed shares of the limit; what is not guaranteed,
	// or guaranteed and unused beyond need, is free to all.
	Partitions []Partition `yaml:"partitions"`
}

// Hold is the queue of units that wait for a slot.
type Hold struct {
	MaxWait    time.Duration `yaml:"max_wait"`
	MaxWaiting int           `yaml:"max_waiting"` // default 1000
	Order      string        `yaml:"order"`       // fifo (default) or lifo
}

// Partition is a part of the arrivals with a guaranteed share of the limit.
type Partition struct {
	Arrivals float64 `yaml:"arrivals"` // its share of the arrivals; they add up to 1
	Share    float64 `yaml:"share"`    // its guaranteed share of the limit; at most 1 together
}

// WithDefaults returns a copy in which every field has its value.
func (s Scenario) WithDefaults() Scenario {
	def(&s.Duration, time.Minute)
	def(&s.To, s.Duration)
	def(&s.Seed, 1)
	def(&s.Tick, 100*time.Millisecond)
	def(&s.Deadline, 10)
	def(&s.Server.Workers, 16)
	def(&s.Server.Service, 20*time.Millisecond)
	def(&s.Server.Distribution, "exponential")
	switch s.Server.Distribution {
	case "lognormal":
		def(&s.Server.Shape, 1)
	case "pareto":
		def(&s.Server.Shape, 1.5)
	}
	def(&s.Server.Discipline, "fifo")
	def(&s.Server.Backlog, 4096)
	def(&s.Server.Contention.From, 1)
	def(&s.Server.Contention.Power, 1)
	if len(s.Server.Classes) == 0 {
		s.Server.Classes = []Class{{Share: 1, Times: 1}}
	}
	def(&s.Load.Batch, 1)
	def(&s.Retry.Factor, 1)
	def(&s.Retry.Jitter, 0.2)
	def(&s.Gate.Reject, "reset")
	def(&s.Gate.Hold.MaxWaiting, 1000)
	def(&s.Gate.Hold.Order, "fifo")
	return s
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// MeanService is the mean service time over the classes, in seconds.
func (s Scenario) MeanService() float64 {
	mean := 0.0
	for _, c := range s.Server.Classes {
		mean += c.Share * c.Times
	}
	return mean * s.Server.Service.Seconds()
}

// Validate returns everything that is out of range, joined, each with its key;
// nil when nothing is. It sees the scenario as [Scenario.WithDefaults] fills it.
func (s Scenario) Validate() error {
	s = s.WithDefaults()
	var c checker
	c.that(s.Duration > 0 && s.Duration <= 24*time.Hour, "duration: %v is not between 0 and 24h", s.Duration)
	c.that(s.From >= 0 && s.From < s.To, "from: %v is not between 0 and to (%v)", s.From, s.To)
	c.that(s.To <= s.Duration, "to: %v is after the end (%v)", s.To, s.Duration)
	c.that(s.Tick >= time.Millisecond && s.Tick <= 10*time.Second, "tick: %v is not between 1ms and 10s", s.Tick)
	c.that(s.Deadline > 0, "deadline: %v is not positive", s.Deadline)
	s.Server.validate(&c)
	s.Load.validate(&c)
	c.that(s.Clients.Count >= 0 && s.Clients.Count <= 1e6, "clients.count: %d is not between 0 and 1000000", s.Clients.Count)
	c.that(s.Clients.Think >= 0, "clients.think: %v is negative", s.Clients.Think)
	c.that(s.Clients.Count > 0 || s.Load.Rate > 0 || s.Load.Capacity > 0,
		"load: neither load.rate, load.capacity nor clients.count is set: nothing would arrive")
	c.that(s.Retry.Times >= 0 && s.Retry.Times <= 100, "retry.times: %d is not between 0 and 100", s.Retry.Times)
	c.that(s.Retry.After >= 0, "retry.after: %v is negative", s.Retry.After)
	c.that(s.Retry.Factor > 0, "retry.factor: %v is not positive", s.Retry.Factor)
	c.that(s.Retry.Jitter >= 0 && s.Retry.Jitter <= 2, "retry.jitter: %v is not between 0 and 2", s.Retry.Jitter)
	c.that(s.Retry.Timeout >= 0, "retry.timeout: %v is negative", s.Retry.Timeout)
	s.Gate.validate(&c)
	return errors.Join(c...)
}

func (s Server) validate(c *checker) {
	c.that(s.Workers >= 1 && s.Workers <= 1e6, "server.workers: %d is not between 1 and 1000000", s.Workers)
	c.that(s.Service >= time.Microsecond && s.Service <= time.Hour, "server.service: %v is not between 1us and 1h", s.Service)
	c.oneOf("server.distribution", s.Distribution, "constant", "exponential", "lognormal", "pareto")
	if s.Distribution == "lognormal" {
		c.that(s.Shape > 0 && s.Shape <= 3, "server.shape: %v is not between 0 and 3, for lognormal", s.Shape)
	}
	if s.Distribution == "pareto" {
		c.that(s.Shape > 1, "server.shape: %v is not more than 1, for pareto", s.Shape)
	}
	c.oneOf("server.discipline", s.Discipline, "fifo", "sharing")
	c.that(s.Backlog >= 1, "server.backlog: %d is less than 1", s.Backlog)
	c.that(s.Contention.Factor >= 0, "server.contention.factor: %v is negative", s.Contention.Factor)
	c.that(s.Contention.Power > 0, "server.contention.power: %v is not positive", s.Contention.Power)
	sum := 0.0
	for i, k := range s.Classes {
		c.that(k.Share >= 0, "server.classes[%d].share: %v is negative", i, k.Share)
		c.that(k.Times > 0, "server.classes[%d].times: %v is not positive", i, k.Times)
		sum += k.Share
	}
	c.that(sum > 0.999 && sum < 1.001, "server.classes: the shares add up to %v, not 1", sum)
	for i, ch := range s.Changes {
		c.that(i == 0 || ch.At >= s.Changes[i-1].At, "server.changes[%d].at: %v is before the one before it", i, ch.At)
		c.that(ch.Speed >= 0, "server.changes[%d].speed: %v is negative", i, ch.Speed)
		c.that(ch.Workers >= 0, "server.changes[%d].workers: %d is negative", i, ch.Workers)
		c.that(ch.Deadline >= 0, "server.changes[%d].deadline: %v is negative", i, ch.Deadline)
		c.that(len(ch.Shares) == 0 || len(ch.Shares) == len(s.Classes),
			"server.changes[%d].shares: %d values for %d classes", i, len(ch.Shares), len(s.Classes))
	}
	c.that(s.Stalls.For >= 0 && s.Stalls.Every >= 0, "server.stalls: a time is negative")
	c.that(s.Stalls.For == 0 || s.Stalls.For < s.Stalls.Every,
		"server.stalls.for: %v is not less than every (%v)", s.Stalls.For, s.Stalls.Every)
}

func (l Load) validate(c *checker) {
	c.that(l.Rate >= 0 && l.Rate <= 1e7, "load.rate: %v is not between 0 and 1e7", l.Rate)
	c.that(l.Capacity >= 0 && l.Capacity <= 1000, "load.capacity: %v is not between 0 and 1000", l.Capacity)
	c.that(l.Rate == 0 || l.Capacity == 0, "load: rate and capacity are both set")
	c.that(l.Batch >= 1, "load.batch: %v is less than 1", l.Batch)
	c.that(l.Repeat >= 0, "load.repeat: %v is negative", l.Repeat)
	for i, p := range l.Profile {
		c.that(p.Times >= 0, "load.profile[%d].times: %v is negative", i, p.Times)
		c.that(i == 0 || p.At >= l.Profile[i-1].At, "load.profile[%d].at: %v is before the one before it", i, p.At)
	}
}

func (g Gate) validate(c *checker) {
	c.oneOf("gate.reject", g.Reject, "reset", "drop")
	c.oneOf("gate.hold.order", g.Hold.Order, "fifo", "lifo")
	c.that(g.Hold.MaxWait >= 0, "gate.hold.max_wait: %v is negative", g.Hold.MaxWait)
	c.that(g.Hold.MaxWaiting >= 1, "gate.hold.max_waiting: %d is less than 1", g.Hold.MaxWaiting)
	arrivals, share := 0.0, 0.0
	for i, p := range g.Partitions {
		c.that(p.Arrivals >= 0 && p.Share >= 0, "gate.partitions[%d]: a value is negative", i)
		arrivals += p.Arrivals
		share += p.Share
	}
	if len(g.Partitions) > 0 {
		c.that(arrivals > 0.999 && arrivals < 1.001, "gate.partitions: the arrivals add up to %v, not 1", arrivals)
		c.that(share <= 1.001, "gate.partitions: the shares add up to %v, more than 1", share)
		c.that(g.Hold.MaxWait == 0, "gate.partitions: not together with gate.hold")
	}
}

// KeyError says what is wrong with one key of a scenario.
type KeyError struct {
	Key    string // as in a scenario file, for example "server.changes[0].speed"
	Reason string // with the valid range
}

func (e *KeyError) Error() string { return e.Key + ": " + e.Reason }

// checker gathers what is wrong.
type checker []error

// that notes a KeyError unless ok; its format begins with the key.
func (c *checker) that(ok bool, format string, args ...any) {
	if !ok {
		key, reason, _ := strings.Cut(fmt.Sprintf(format, args...), ": ")
		*c = append(*c, &KeyError{key, reason})
	}
}

func (c *checker) oneOf(key, value string, allowed ...string) {
	c.that(slices.Contains(allowed, value), "%s: %q is none of %s", key, value, strings.Join(allowed, ", "))
}
