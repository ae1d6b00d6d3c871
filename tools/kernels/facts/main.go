// Command facts attaches headgate to a host made of a network namespace, and
// prints how that went on the running kernel, as one line of JSON. It is run
// in the guests of tools/kernels.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"headgate/internal/lab"
	"headgate/pkg/device"
	"headgate/pkg/loader"
	"headgate/pkg/netfilter"
	"headgate/pkg/scope"
)

// prefix begins the line; tools/kernels looks for it.
const prefix = "headgate-facts: "

// A fact is a feature, and how this kernel has it.
type fact struct {
	Feature string `json:"feature"`
	How     string `json:"how"`
}

func main() {
	facts, err := gather()
	if err != nil {
		fmt.Fprintln(os.Stderr, "facts:", err)
		os.Exit(1)
	}
	line, err := json.Marshal(facts)
	if err != nil {
		fmt.Fprintln(os.Stderr, "facts:", err)
		os.Exit(1)
	}
	fmt.Printf("%s%s\n", prefix, line)
}

func gather() (facts []fact, err error) {
	dir, unmount, err := lab.MountBPF()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unmount()) }()
	l, err := lab.New("srv", "cli")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	ns, err := scope.OpenNetns(l.Host("srv").NetNS)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	g, err := loader.Open(loader.Options{Dir: dir + "/state", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.Remove()) }()

	s := &site{lab: l, ns: ns, gate: g}
	defer s.close()
	facts, err = s.connections()
	if err != nil {
		return nil, err
	}
	holding, err := s.holding()
	return append(facts, holding...), err
}

// site is where headgate is attached to.
type site struct {
	lab  *lab.Lab
	ns   *scope.Netns
	gate *loader.Gate
	open []io.Closer
}

func (s *site) close() {
	for _, c := range s.open {
		c.Close()
	}
}

// has says how a capability is had.
func (s *site) has(c loader.Capability, how string) string {
	if s.gate.Capabilities()[c] {
		return how
	}
	return "no: " + c.Otherwise()
}

// connections counts one that is older than the programs, and one that is not.
func (s *site) connections() ([]fact, error) {
	const port = 8080
	srv, cli := s.lab.Host("srv"), s.lab.Host("cli")
	ln, err := srv.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, err
	}
	s.open = append(s.open, ln)
	connect := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		client, err := cli.Dial(ctx, "tcp", fmt.Sprintf("%s:%d", srv.Addr4, port))
		if err != nil {
			return err
		}
		s.open = append(s.open, client)
		server, err := ln.Accept()
		if err == nil {
			s.open = append(s.open, server)
		}
		return err
	}
	for _, step := range []func() error{
		func() error {
			_, err := s.gate.Target(loader.TargetKey{Netns: s.ns.Cookie(), Port: port}, loader.Order{Limit: 10}, 0)
			return err
		},
		connect, // before anything is attached
		func() error { return s.gate.AttachCgroup2(srv.Cgroup.Path) },
		func() error {
			id, err := srv.Cgroup.ID()
			return errors.Join(err, s.gate.AttachService(srv.Cgroup.Path, id))
		},
		func() error { return s.gate.Adopt(s.ns) },
		func() error { return s.gate.AttachNetns(s.ns) },
		connect,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	r, err := s.gate.Reading(0)
	if err != nil {
		return nil, err
	}
	older := s.has(loader.CanAdopt, "counted")
	if r.Unadoptable != 0 {
		older = "counted; that they end is seen when the application closes them, or a second later"
	}
	want := loader.Reading{InFlight: 1, Admitted: 1}
	if s.gate.Capabilities()[loader.CanAdopt] {
		want = loader.Reading{InFlight: 2, Admitted: 1, Adopted: 1}
	}
	if r.InFlight != want.InFlight || r.Admitted != want.Admitted || r.Adopted != want.Adopted {
		return nil, fmt.Errorf("one connection came before the programs and one after: %+v", r)
	}
	if s.gate.Capabilities()[loader.CanAccept] {
		if err := s.gate.WatchReads(true); err != nil {
			return nil, err
		}
	}
	on := s.gate.Attached()
	return []fact{
		{"connections begin and end (`sockops`)", attached(on[loader.HookSockops])},
		{"a client's reset leaves the slot to who works on (`sock_release`)", s.has(loader.CanRelease, attached(on[loader.HookRelease]))},
		{"admission at the SYN (`sk_lookup`)", attached(on[loader.HookLookup])},
		{"service times, requests (`cgroup_skb`)", s.has(loader.CanService, attached(min(on[loader.HookIngress], on[loader.HookEgress])))},
		{"waits for the application (`tp_btf/tcp_rcv_space_adjust`)", s.has(loader.CanAccept, attached(on[loader.HookRead]))},
		{"connections older than the agent (`iter/tcp`)", older},
		{"counts compared with the sockets (`iter/bpf_sk_storage_map`)", s.has(loader.CanRecount, "yes")},
		{"expired reservations on an idle port (`syscall`)", s.has(loader.CanSweep, "yes")},
	}, nil
}

func attached(n int) string {
	if n == 0 {
		return "no"
	}
	return "attached"
}

// holding attaches to devices, and makes the rule of the packet filter.
func (s *site) holding() (facts []fact, err error) {
	if !s.gate.Capabilities()[loader.CanHold] {
		return []fact{{"arrivals seen on devices", s.has(loader.CanHold, "")}}, nil
	}
	prog, err := s.gate.IngressProgram(s.ns)
	if err != nil {
		return nil, err
	}
	defer prog.Close()
	d, err := device.New(s.ns, prog, device.Options{Dir: s.gate.DevicesDir()})
	if err != nil {
		return nil, err
	}
	if err := d.Sync(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Detach()) }()
	var ways []string
	for _, a := range d.Attached() {
		if how := string(a.Method); len(ways) == 0 || ways[len(ways)-1] != how {
			ways = append(ways, how)
		}
	}
	rule := netfilter.Rule{Netns: s.ns, Mark: loader.HoldMark, Queue: 1}
	if _, err := rule.Ensure(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, netfilter.Remove(s.ns)) }()
	queue, err := s.queue()
	return []fact{
		{"arrivals seen on devices (`tc`)", strings.Join(ways, ", ")},
		{"arrivals held (netfilter queue)", queue},
	}, err
}

// queue says by whose means packets are queued.
func (s *site) queue() (string, error) {
	c, err := nftables.New(nftables.WithNetNSFd(s.ns.Fd()))
	if err != nil {
		return "", err
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return "", err
	}
	for _, chain := range chains {
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			return "", err
		}
		for _, r := range rules {
			for _, e := range r.Exprs {
				switch e.(type) {
				case *expr.Queue:
					return "`nft_queue`", nil
				case *expr.Target:
					return "`xt_NFQUEUE`, by `nft_compat`", nil
				}
			}
		}
	}
	return "", errors.New("the rule that queues is not to be found")
}
