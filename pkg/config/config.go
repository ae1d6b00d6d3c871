// Package config turns a YAML file, the command line and the environment into
// a validated configuration with every default in place.
//
// The structs here are also the reference of the file format: a field is a
// key, its comment is the key's documentation, and docs/config.md is written
// from them.
package config

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"time"

	"headgate/pkg/controller"
)

// Config is the whole configuration of an agent.
type Config struct {
	// Listen is the address, host:port, that metrics, health and the API are
	// served on. Anybody who can reach it can read them, so the default is
	// loopback only; port 0 lets the system choose one.
	Listen string `yaml:"listen"`

	// WebConfig is a file that turns on TLS and basic authentication for
	// Listen, in the format of the Prometheus exporter toolkit. A relative
	// path is taken from the directory of the configuration file. Without it
	// Listen speaks plain HTTP.
	WebConfig string `yaml:"web_config"`

	// Socket is the unix socket that changes of a running agent are asked for on:
	// limits and modes by hand, exemptions, a reload. Who may write to it may do
	// that; its mode is 0660. An absolute path, or none.
	Socket string `yaml:"socket"`

	// SocketGroup is the group that Socket belongs to, by name or number, so that
	// its members may use it. By default that of the agent.
	SocketGroup string `yaml:"socket_group"`

	// State is the directory on a BPF file system (bpffs) that programs and
	// maps are pinned under, so that they outlive the agent. An absolute path.
	State string `yaml:"state"`

	// Window is how often measurements are read and limits recomputed: 10ms
	// to 10s. Shorter reacts faster and costs more CPU; an algorithm that
	// wants more samples than one window holds gathers several.
	Window time.Duration `yaml:"window"`

	// Lease is how long the last written limits stay in force when the agent
	// no longer renews them: from 3 windows, at least 1s, to 1h. When it
	// lapses every gate opens and only counting goes on.
	Lease time.Duration `yaml:"lease"`

	// Mode is enforce, or observe: count and report what would have been
	// refused, and refuse nobody.
	Mode Mode `yaml:"mode"`

	// Rules say what is protected, at least one. What a rule leaves out is
	// taken from the key defaults, which has any key of a rule but name, port,
	// ports and force, and then from the defaults given here.
	Rules []Rule `yaml:"rules"`
}

// Rule is one entry of rules: some ports of one scope and how they are limited.
type Rule struct {
	// Name appears in status, metrics and events: 1 to 63 letters, digits,
	// dots, dashes and underscores, no two rules the same. By default it is
	// made from the first port: port-8080.
	Name string `yaml:"name"`

	// Ports are the protected TCP ports, 1 to 65535; each becomes a target
	// with a limit of its own. A single one may be written as port: 8080. No
	// two rules of a scope may name the same port; where two find the same one, the
	// first rule has it.
	Ports []uint16 `yaml:"ports"`

	// Scope is where the ports are: host, the network namespace that the agent
	// runs in; {netns: NAME}, a namespace that ip netns lists, or {netns:
	// /absolute/path} of one; {cgroup: PATTERN}, systemd units or containers; or
	// {pods: {namespace: shop, labels: {app: web}}}, pods of this node. Whatever
	// is found has counts and a limit of its own. Of what is found by all rules no
	// more than 200 targets are protected; more are let alone, and status says so.
	Scope Scope `yaml:"scope"`

	// Mode is enforce or observe, for this rule alone; by default that of the
	// whole agent.
	Mode Mode `yaml:"mode"`

	// Unit is what is counted and limited: connection, or request: what a
	// client sends while nothing is under way on its connection, in any
	// protocol where an answer comes before the next request, with TLS or
	// without. Requests that are sent together count as one, and so does all
	// that is under way at once on a connection of HTTP/2: there connection is
	// the unit to take.
	Unit Unit `yaml:"unit"`

	// End is when a request is over: first_byte, when its response begins, or
	// {idle: 20ms}, when the output has been idle for so long (1ms to 10s) or
	// the next request is there. With first_byte, of a response that takes long
	// from its first byte to its last only the wait for the first is counted.
	// idle must be longer than the longest pause inside a response, and keeps
	// the slot for that long after it: it suits streams, and requests that are
	// sent before the answer to the last. Only of unit: request.
	End End `yaml:"end"`

	// Signal is the latency that the limit follows: service, the time from a
	// request's last byte in to its response's first byte out; rtt, the
	// round trip time of TCP, which does not see the server's own queue;
	// connection, the lifetime of a connection, for servers that close after
	// one exchange; or accept, how long a new connection waits for the
	// application: from its handshake, or its first payload where that comes
	// later, until the application reads from it (or writes, where the server
	// speaks first). That suits servers with a worker for each connection, whose
	// own work takes anything from a moment to a minute: the wait says whether a
	// worker was free. It goes with the algorithm aimd, whose timeout is the wait
	// that is too long. connection and accept not with unit: request.
	Signal Signal `yaml:"signal"`

	// Limit says how the number of units in flight is bounded.
	Limit Limit `yaml:"limit"`

	// WarmUp is how long after a listener appeared, 0s to 1h, no baseline is
	// recorded and the limit stays at its initial value. The default is the
	// algorithm's: 60s for blog, 0s for the others.
	WarmUp *time.Duration `yaml:"warm_up"`

	// Hold lets units wait that find the limit reached. Without it they are
	// refused at once; for unit: request, which is refused by resetting its
	// connection, a hold is nearly always what is wanted.
	Hold Hold `yaml:"hold"`

	// Pace spreads admissions evenly over time, within the limit: a unit needs
	// its turn in the pace and a free slot. By default there is none.
	Pace Pace `yaml:"pace"`

	// Reject is what a refused client gets. reset: its connect fails with
	// "connection refused" at once, or the connection of its request is reset.
	// drop: nothing, so that it tries again, first after 1 s, until its own
	// timeout; not with unit: request.
	Reject Reject `yaml:"reject"`

	// Exempt are networks, [10.0.0.0/8, fd00::/8], or single addresses, whose
	// connections are never counted, timed, held or refused: health checks, the
	// operators. [127.0.0.0/8, "::1"] is loopback, which counts like any other
	// source otherwise. What is exempt comes before all else, PerSource and
	// Classes included. No more than 30000 networks, of all targets together.
	Exempt []netip.Prefix `yaml:"exempt"`

	// PerSource is the most units of one source. By default there is none.
	PerSource PerSource `yaml:"per_source"`

	// Classes share the limit: up to 14 groups of clients with a part of it that
	// is theirs alone. What is guaranteed to nobody is free to all, and so a class
	// may have more than its share. A share follows the limit. While some of a
	// class's guarantee is unused, it is kept free for it.
	Classes []Class `yaml:"classes"`

	// Force allows what is otherwise refused as a likely mistake: a limit of
	// 0, which refuses everybody; a rule for the port of the ssh session that
	// the agent is started from; a rule for the port of listen; an exemption of
	// everybody; a limit or a class for sources that are exempt.
	Force bool `yaml:"force"`
}

// Limit says what bounds the number of units in flight.
type Limit struct {
	// Algorithm computes the limit: guarded, gradient2, gradient, blog,
	// vegas, aimd or fixed.
	Algorithm string `yaml:"algorithm"`

	// Params are the keys beside algorithm: the bounds of the limit, and what
	// else the algorithm can be told.
	Params controller.Params `yaml:",inline"`
}

// Target is one port of one rule.
type Target struct {
	Rule *Rule
	Port uint16
}

// NewAlgorithm returns a new instance of the algorithm of the target's rule.
// What the algorithm leaves to chance differs from target to target.
func (t Target) NewAlgorithm() (controller.Algorithm, error) {
	p := t.Rule.Limit.Params
	p.WarmUp = t.Rule.WarmUp
	h := fnv.New64a()
	fmt.Fprint(h, t.Rule.Scope, t.Port)
	p.Seed = max(h.Sum64(), 1)
	return controller.New(t.Rule.Limit.Algorithm, p)
}

// Targets returns the targets of all rules, in the order of the file.
func (c *Config) Targets() []Target {
	var ts []Target
	for i := range c.Rules {
		for _, p := range c.Rules[i].Ports {
			ts = append(ts, Target{Rule: &c.Rules[i], Port: p})
		}
	}
	return ts
}

// Mode says whether a verdict is put in force or only counted.
type Mode string

// Unit names what is counted and limited.
type Unit string

// Signal names the latency that a limit follows.
type Signal string

// Reject names what a refused client gets.
type Reject string

const (
	ModeEnforce Mode = "enforce"
	ModeObserve Mode = "observe"

	UnitConnection Unit = "connection"
	UnitRequest    Unit = "request"

	SignalService    Signal = "service"
	SignalRTT        Signal = "rtt"
	SignalConnection Signal = "connection"
	SignalAccept     Signal = "accept"

	RejectReset Reject = "reset"
	RejectDrop  Reject = "drop"
)
