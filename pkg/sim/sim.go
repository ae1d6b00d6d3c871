// Package sim simulates a server behind the gate, event by event: who arrives,
// who is admitted, held or rejected, how long each unit takes, and what an
// algorithm of package controller makes of it, tick by tick as in the agent.
package sim

import (
	"context"
	"fmt"
	"math"
	"time"

	"headgate/pkg/controller"
)

// synPauses are the pauses before a Linux client sends a SYN again that
// nothing answered: 1, 3 and 7 s after the first. It goes on up to 63 s, but
// few callers wait so long.
var synPauses = [...]float64{1, 2, 4}

// job is a unit, or an attempt at one.
type job struct {
	first     float64 // s, when its client asked first
	arrived   float64 // s, this attempt
	admitted  float64 // s
	work      float64 // s at speed 1
	deadline  float64 // s
	times     float64 // of its class
	partition int
	client    int // -1 in open loop
	tries     int // attempts of the application before this one
	syns      int // SYNs of this attempt before this one
	epoch     uint32
	life      uint64 // differs each time that the job is used again
	waiting   bool
	abandoned bool
}

type kind uint8

const (
	arrive kind = iota
	change
	stall
	resume
	expire  // a held unit has waited long enough
	timeout // a client has
)

type event struct {
	kind kind
	job  *job
	life uint64
	at   int // index of a change
}

type simulation struct {
	sc       Scenario
	source   source
	arrivals *arrivals
	gate     *gate
	result   *Result

	now     float64
	end     float64
	events  heap[event]
	running heap[*job] // by progress at which they finish
	queue   fifo[*job] // admitted, no worker yet
	held    fifo[*job]
	waiting int // of held, those that still wait

	progress float64 // what each running job has got since the start, s of work
	rate     float64 // at which it grows
	speed    float64
	stalled  bool
	workers  int
	shares   []float64
	splits   []float64 // arrivals by partition
	longer   float64   // factor on the deadline

	free  []*job
	lives uint64
}

// Run simulates the scenario under an algorithm that was not used before.
// progress, where not nil, is told now and then how much time was simulated.
// The error is that of [Scenario.Validate] or of the context.
func Run(ctx context.Context, sc Scenario, a controller.Algorithm, progress func(time.Duration)) (*Result, error) {
	if err := sc.Validate(); err != nil {
		return nil, fmt.Errorf("scenario: %w", err)
	}
	s := newSimulation(sc.WithDefaults(), a)
	if err := s.run(ctx, progress); err != nil {
		return nil, err
	}
	s.result.summarise(s.gate)
	return s.result, nil
}

func newSimulation(sc Scenario, a controller.Algorithm) *simulation {
	base := sc.Load.Rate
	if sc.Load.Capacity > 0 {
		base = sc.Load.Capacity * sc.Capacity()
	}
	s := &simulation{
		sc:       sc,
		source:   newSource(sc.Seed),
		arrivals: newArrivals(sc.Load, base),
		gate:     newGate(a, sc.Gate.Partitions),
		result:   newResult(sc),
		end:      sc.Duration.Seconds(),
		speed:    1,
		workers:  sc.Server.Workers,
		longer:   1,
	}
	for _, c := range sc.Server.Classes {
		s.shares = append(s.shares, c.Share)
	}
	for _, p := range sc.Gate.Partitions {
		s.splits = append(s.splits, p.Arrivals)
	}
	for i, c := range sc.Server.Changes {
		s.events.push(c.At.Seconds(), event{kind: change, at: i})
	}
	if st := sc.Server.Stalls; st.For > 0 {
		s.events.push(st.Every.Seconds(), event{kind: stall})
	}
	for i := range sc.Clients.Count {
		at := s.source.clients.Float64() * 0.01
		if think := sc.Clients.Think.Seconds(); think > 0 {
			at = s.source.clients.ExpFloat64() * think
		}
		s.events.push(at, event{kind: arrive, job: s.newJob(at, i)})
	}
	return s
}

func (s *simulation) run(ctx context.Context, progress func(time.Duration)) error {
	tick, ticks, steps := s.sc.Tick.Seconds(), 0, 0
	nextTick := 0.0
	nextArrival := s.arrivals.next(0, s.end, s.source)
	for {
		if steps++; steps&4095 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		finish := math.Inf(1)
		if s.rate > 0 && s.running.len() > 0 {
			finish = max(s.now, s.now+(s.running.first()-s.progress)/s.rate)
		}
		nextEvent := math.Inf(1)
		if s.events.len() > 0 {
			nextEvent = s.events.first()
		}
		to := min(finish, nextEvent, nextArrival, nextTick)
		if to >= s.end {
			return nil
		}
		s.progress += (to - s.now) * s.rate
		s.now = to
		switch to {
		case finish:
			s.finish()
		case nextTick:
			s.gate.tick(s.now)
			s.result.tick(s)
			s.release()
			ticks++
			nextTick = float64(ticks) * tick
			if ticks&1023 == 0 {
				if progress != nil {
					progress(seconds(s.now))
				}
			}
		case nextArrival:
			s.arrive(s.newJob(s.now, -1))
			nextArrival = s.arrivals.next(s.now, s.end, s.source)
		default:
			_, e := s.events.pop()
			s.handle(e)
		}
		s.setRate()
	}
}

// setRate works out how fast each running job proceeds.
func (s *simulation) setRate() {
	n := s.running.len()
	if n == 0 || s.stalled {
		s.rate = 0
		return
	}
	s.rate = s.speed
	if s.sharing() && n > s.workers {
		s.rate *= float64(s.workers) / float64(n)
	}
	if c := s.sc.Server.Contention; c.Factor > 0 {
		s.rate /= c.Slowdown(float64(s.gate.inFlight) / float64(s.workers))
	}
}

func (s *simulation) sharing() bool { return s.sc.Server.Discipline == "sharing" }

// newJob makes the first attempt of a new unit.
func (s *simulation) newJob(at float64, client int) *job {
	var j *job
	if n := len(s.free); n > 0 {
		j, s.free = s.free[n-1], s.free[:n-1]
	} else {
		j = new(job)
	}
	s.lives++
	class := s.sc.Server.Classes[s.source.pick(s.shares)]
	mean := s.sc.Server.Service.Seconds() * class.Times
	*j = job{
		first:     at,
		work:      mean * s.source.service(s.sc.Server.Distribution, s.sc.Server.Shape),
		deadline:  s.sc.Deadline * mean,
		times:     class.Times,
		partition: s.source.pick(s.splits),
		client:    client,
		life:      s.lives,
	}
	return j
}

func (s *simulation) drop(j *job) {
	j.life = 0
	s.free = append(s.free, j)
}

func (s *simulation) handle(e event) {
	switch e.kind {
	case arrive:
		s.arrive(e.job)
	case change:
		s.change(s.sc.Server.Changes[e.at])
	case stall:
		s.stalled = true
		s.events.push(s.now+s.sc.Server.Stalls.For.Seconds(), event{kind: resume})
		s.events.push(s.now+s.sc.Server.Stalls.Every.Seconds(), event{kind: stall})
	case resume:
		s.stalled = false
	case expire:
		if e.job.life == e.life && e.job.waiting {
			e.job.waiting = false
			s.waiting--
			s.reject(e.job)
		}
	case timeout:
		if e.job.life == e.life && !e.job.waiting {
			e.job.abandoned = true
			s.again(e.job.first, e.job.tries, e.job.client)
		}
	}
}

func (s *simulation) change(c Change) {
	def(&c.Speed, s.speed)
	def(&c.Workers, s.workers)
	def(&c.Deadline, s.longer)
	s.speed, s.workers, s.longer = c.Speed, c.Workers, c.Deadline
	if len(c.Shares) > 0 {
		s.shares = c.Shares
	}
	s.serve()
}

func (s *simulation) arrive(j *job) {
	j.arrived = s.now
	s.result.offered(s.now)
	hold := s.sc.Gate.Hold
	switch {
	case s.gate.inFlight >= s.sc.Server.Backlog:
		s.reject(j)
	case s.waiting == 0 && s.gate.room(j.partition):
		s.admit(j)
	case hold.MaxWait > 0 && s.waiting < hold.MaxWaiting:
		j.waiting = true
		s.waiting++
		s.held.push(j)
		s.events.push(s.now+hold.MaxWait.Seconds(), event{kind: expire, job: j, life: j.life})
	default:
		s.reject(j)
	}
}

func (s *simulation) admit(j *job) {
	s.gate.admit(s.now, j)
	s.result.admitted(s.now, j)
	if wait := s.sc.Retry.Timeout.Seconds(); wait > 0 && j.tries < s.sc.Retry.Times {
		s.events.push(max(s.now, j.arrived+wait), event{kind: timeout, job: j, life: j.life})
	}
	if s.sharing() || s.running.len() < s.workers {
		s.running.push(s.progress+j.work, j)
		return
	}
	s.queue.push(j)
}

func (s *simulation) finish() {
	progress, j := s.running.pop()
	s.progress = progress
	s.gate.finish(s.now, j)
	s.result.finished(s.now, j, s.longer)
	if !j.abandoned && j.client >= 0 {
		s.think(j.client, 0)
	}
	s.drop(j)
	s.serve()
	s.release()
}

// serve gives queued units to free workers.
func (s *simulation) serve() {
	for s.queue.len() > 0 && s.running.len() < s.workers {
		j := s.queue.shift()
		s.running.push(s.progress+j.work, j)
	}
}

// release admits held units while there is room.
func (s *simulation) release() {
	for s.waiting > 0 && s.gate.room(0) {
		var j *job
		if s.sc.Gate.Hold.Order == "lifo" {
			j = s.held.pop()
		} else {
			j = s.held.shift()
		}
		if j.waiting {
			j.waiting = false
			s.waiting--
			s.admit(j)
		}
	}
	if s.waiting == 0 {
		s.held = fifo[*job]{items: s.held.items[:0]}
	}
}

// reject turns an attempt away and lets its client, or its client's kernel,
// try again.
func (s *simulation) reject(j *job) {
	s.gate.refuse()
	s.result.rejected(s.now)
	if s.sc.Gate.Reject == "drop" && j.syns < len(synPauses) {
		j.waiting = false
		s.events.push(s.now+synPauses[j.syns], event{kind: arrive, job: j})
		j.syns++
		return
	}
	s.again(j.first, j.tries, j.client)
	s.drop(j)
}

// again begins the next attempt of the application, or gives up.
func (s *simulation) again(first float64, tries, client int) {
	r := s.sc.Retry
	if tries >= r.Times {
		if client >= 0 {
			const least = 0.01 // a client without think time must not spin
			s.think(client, least)
		}
		return
	}
	pause := r.After.Seconds() * math.Pow(r.Factor, float64(tries))
	pause *= 1 + r.Jitter*(s.source.clients.Float64()-0.5)
	j := s.newJob(s.now+pause, client)
	j.first, j.tries = first, tries+1
	s.events.push(s.now+pause, event{kind: arrive, job: j})
}

func (s *simulation) think(client int, least float64) {
	at := s.now
	if think := s.sc.Clients.Think.Seconds(); think > 0 {
		at += s.source.clients.ExpFloat64() * think
	} else {
		at += least
	}
	s.events.push(at, event{kind: arrive, job: s.newJob(at, client)})
}

// Slowdown is the factor on the service time at load units in flight a worker.
func (c Contention) Slowdown(load float64) float64 {
	if c.Log {
		return 1 + c.Factor*math.Log(max(1, load))
	}
	over := max(0, load-c.From)
	if c.Power != 1 {
		over = math.Pow(over, c.Power)
	}
	return 1 + c.Factor*over
}

// Capacity is what the server finishes a second at its start, all workers busy
// and nothing waiting.
func (s Scenario) Capacity() float64 {
	return float64(s.Server.Workers) / s.MeanService()
}
