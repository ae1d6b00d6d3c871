package loader

import (
	"errors"
	"fmt"
	"math"

	"github.com/cilium/ebpf/link"
)

// HookRead is where an application reads from a TCP socket: the tracepoint
// tcp_rcv_space_adjust.
const HookRead Hook = "tcp_rcv_space_adjust"

// WatchReads sets whether the programs see applications read from their sockets,
// which [Order].Accept takes. Every read from a TCP socket of the host pays for
// it, so it is for those who ask for it only.
//
// Nothing is counted there, so the link is not pinned: it ends with the agent. Orders
// that are written from now on time the connections that begin from now on.
func (g *Gate) WatchReads(on bool) error {
	if on == (g.reads != nil) {
		return nil
	}
	if !on {
		l := g.reads
		g.reads = nil
		return l.Close()
	}
	p := g.progs[headgateProgHeadgateRead]
	if p == nil {
		return fmt.Errorf("watch applications read: %s", CanAccept.Otherwise())
	}
	l, err := link.AttachTracing(link.TracingOptions{Program: p})
	if err != nil {
		return fmt.Errorf("attach %s: %w", HookRead, err)
	}
	now, err := clock()
	if err != nil {
		return errors.Join(err, l.Close())
	}
	g.reads, g.since = l, uint64(now)
	return nil
}

// readsSince is of which connections the first read cannot have gone unseen: those that
// are no older, CLOCK_MONOTONIC, ns.
func (g *Gate) readsSince() uint64 {
	if g.reads == nil {
		return math.MaxUint64
	}
	return g.since
}
