package loader

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"headgate/pkg/scope"
)

// Hook names a place in the kernel that a program is attached to.
type Hook string

// The hooks that headgate uses.
const (
	HookSockops Hook = "sockops"
	HookRelease Hook = "sock_release"
	HookLookup  Hook = "sk_lookup"
	HookIngress Hook = "skb_ingress"
	HookEgress  Hook = "skb_egress"
)

// attached is a pinned link and, where it is not one of the shared programs,
// the program that it holds.
type attached struct {
	hook  Hook
	link  link.Link
	prog  *ebpf.Program
	own   *ebpf.Program
	fresh bool // made by this agent, not taken over

	// again makes the link anew; gone says whether there is nothing any more to
	// attach to.
	again func() (link.Link, error)
	gone  func() bool
}

func (a *attached) close() {
	a.link.Close()
	if a.own != nil {
		a.own.Close()
	}
}

// AttachCgroup2 attaches what counts connections, for all namespaces at once,
// at the root of the cgroup2 hierarchy mounted at path. Then it puts in place what
// decides in all of them.
func (g *Gate) AttachCgroup2(path string) error {
	if err := g.attachCgroup(HookSockops, "", path, ebpf.AttachCGroupSockOps, g.progs[headgateProgHeadgateSockops]); err != nil {
		return err
	}
	if p := g.progs[headgateProgHeadgateRelease]; p != nil {
		if err := g.attachCgroup(HookRelease, "", path, ebpf.AttachCgroupInetSockRelease, p); err != nil {
			return err
		}
	}
	return g.lead()
}

// AttachService attaches what times the connections of listeners that belong
// to the cgroup at path. Only packets of that cgroup and below pay for it.
func (g *Gate) AttachService(path string, id uint64) error {
	if !g.able[CanService] {
		return nil
	}
	suffix := "_" + strconv.FormatUint(id, 10)
	if err := g.attachCgroup(HookIngress, suffix, path, ebpf.AttachCGroupInetIngress, g.progs[headgateProgHeadgateIngress]); err != nil {
		return err
	}
	return g.attachCgroup(HookEgress, suffix, path, ebpf.AttachCGroupInetEgress, g.progs[headgateProgHeadgateEgress])
}

// DetachService undoes [Gate.AttachService].
func (g *Gate) DetachService(id uint64) error {
	suffix := "_" + strconv.FormatUint(id, 10)
	return errors.Join(g.detach(string(HookIngress)+suffix), g.detach(string(HookEgress)+suffix))
}

// AttachNetns attaches admission to a network namespace: a program of some
// instructions, which goes on to the one of all namespaces, see
// [Gate.AttachCgroup2].
func (g *Gate) AttachNetns(ns *scope.Netns) error {
	name := fmt.Sprintf("%s_%d", HookLookup, ns.Cookie())
	if g.links[name] != nil {
		return nil
	}
	p, err := g.loadFor(ns, headgateProgHeadgateLookup)
	if err != nil {
		return err
	}
	a := &attached{
		hook: HookLookup, prog: p, own: p,
		again: func() (link.Link, error) { return link.AttachNetNs(ns.Fd(), p) },
		gone:  func() bool { return false }, // ns holds it
	}
	if a.link, a.fresh, err = g.attach(name, p, a.again); err != nil {
		p.Close()
		return fmt.Errorf("attach %s: %w", name, err)
	}
	g.links[name] = a
	return nil
}

// DetachNetns undoes [Gate.AttachNetns], for the cookie of a namespace.
func (g *Gate) DetachNetns(cookie uint64) error {
	return g.detach(fmt.Sprintf("%s_%d", HookLookup, cookie))
}

// ReleaseNetns takes back [Gate.AttachNetns], before a start that is tried again:
// what this agent attached is detached, and what it took over is left to the next
// that does.
func (g *Gate) ReleaseNetns(cookie uint64) error {
	name := fmt.Sprintf("%s_%d", HookLookup, cookie)
	a := g.links[name]
	if a == nil || a.fresh {
		return g.detach(name)
	}
	delete(g.links, name)
	a.close()
	return nil
}

// loadFor loads a copy of a program for a network namespace.
func (g *Gate) loadFor(ns *scope.Netns, name string) (*ebpf.Program, error) {
	return g.load(name, func(spec *ebpf.CollectionSpec) error {
		return spec.Variables["this_netns"].Set(ns.Cookie())
	})
}

func (g *Gate) attachCgroup(hook Hook, suffix, path string, at ebpf.AttachType, p *ebpf.Program) error {
	name := string(hook) + suffix
	if g.links[name] != nil {
		return nil
	}
	inode := inodeOf(path)
	a := &attached{
		hook: hook, prog: p,
		again: func() (link.Link, error) {
			return link.AttachCgroup(link.CgroupOptions{Path: path, Attach: at, Program: p})
		},
		gone: func() bool { return inode == 0 || inodeOf(path) != inode },
	}
	var err error
	if a.link, a.fresh, err = g.attach(name, p, a.again); err != nil {
		return fmt.Errorf("attach %s to cgroup %s: %w", hook, path, err)
	}
	g.links[name] = a
	return nil
}

// attach replaces the program of a predecessor's link in one step, or makes a
// new (fresh) link and pins it.
func (g *Gate) attach(name string, p *ebpf.Program, attach func() (link.Link, error)) (l link.Link, fresh bool, err error) {
	pin := g.state.link(name)
	old, err := link.LoadPinnedLink(pin, nil)
	switch {
	case err == nil:
		if err = old.Update(p); err == nil {
			return old, false, nil
		}
		old.Close()
		if !errors.Is(err, unix.ENOLINK) { // what it was attached to is gone
			return nil, false, fmt.Errorf("take over the link of an earlier agent: %w", err)
		}
		if err := os.Remove(pin); err != nil {
			return nil, false, fmt.Errorf("unpin the link of an earlier agent: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, false, fmt.Errorf("link of an earlier agent: %w", err)
	}

	if l, err = attach(); err != nil {
		return nil, false, explain(err)
	}
	if err := l.Pin(pin); err != nil {
		l.Close()
		return nil, false, fmt.Errorf("pin: %w", err)
	}
	return l, true, nil
}

func (g *Gate) detach(name string) error {
	a := g.links[name]
	if a == nil {
		return nil
	}
	delete(g.links, name)
	a.close()
	if err := os.Remove(g.state.link(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("detach %s: %w", name, err)
	}
	return nil
}

// Prune detaches what a predecessor had attached and this agent has not: the
// namespaces and cgroups of rules that are gone.
func (g *Gate) Prune() error {
	entries, err := os.ReadDir(g.state.links())
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if g.links[e.Name()] == nil {
			errs = append(errs, os.Remove(g.state.link(e.Name())))
		}
	}
	return errors.Join(errs...)
}

// Attached returns how many programs are attached to each hook. A link whose
// cgroup or namespace is gone does not count.
func (g *Gate) Attached() map[Hook]int {
	n := map[Hook]int{HookSockops: 0, HookRelease: 0, HookLookup: 0, HookIngress: 0, HookEgress: 0, HookRead: 0}
	if g.reads != nil {
		n[HookRead]++
	}
	for _, a := range g.links {
		if alive(a.link) {
			n[a.hook]++
		}
	}
	return n
}

func alive(l link.Link) bool {
	info, err := l.Info()
	if err != nil {
		return false
	}
	if c := info.Cgroup(); c != nil {
		return c.CgroupId != 0
	}
	if n := info.NetNs(); n != nil {
		return n.NetnsInode != 0
	}
	return true
}

// Adopt counts the connections of a namespace that are older than the
// programs. Call it once the programs are attached: what is established after
// that they see themselves, and nothing is counted twice. Called again, it
// settles what was doubtful, see [Reading].
//
// It walks the kernel's table of TCP sockets by iter/tcp, which is to be done as
// seldom as can be: that takes a reference to every socket there, also to one that
// is only just being made, whose own count of references is not set yet. Linux 6.1
// and 6.18 were seen to warn of that (refcount_t: addition on 0), and 6.1 to hang
// later. So who only wants to count what is not asks first whether there is
// anything, see [Gate.Misses].
func (g *Gate) Adopt(ns *scope.Netns) error {
	p := g.progs[headgateProgHeadgateAdopt]
	if p == nil {
		return nil
	}
	it, err := link.AttachIter(link.IterOptions{Program: p})
	if err != nil {
		return fmt.Errorf("adopt connections: %w", err)
	}
	defer it.Close()
	return ns.Do(func() error {
		// The iterator walks the namespace of the thread that opens it.
		r, err := it.Open()
		if err != nil {
			return fmt.Errorf("adopt connections: %w", err)
		}
		defer r.Close()
		if _, err := io.Copy(io.Discard, r); err != nil {
			return fmt.Errorf("adopt connections: %w", err)
		}
		return nil
	})
}

// Forget takes the places of those that waited for a slot when an earlier agent
// ended. Call it before anything is held.
func (g *Gate) Forget() error {
	p := g.progs[headgateProgHeadgateForget]
	if p == nil {
		return nil
	}
	if _, err := p.Run(&ebpf.RunOptions{}); err != nil {
		return fmt.Errorf("forget who waited: %w", err)
	}
	return nil
}

// Sweep gives back the slots of handshakes that never ended. Cheap when it ran
// a moment ago, or no handshake goes on and nobody waits.
func (g *Gate) Sweep() error {
	p := g.progs[headgateProgHeadgateSweep]
	if p == nil || !g.pending() {
		return nil
	}
	if _, err := p.Run(&ebpf.RunOptions{}); err != nil {
		return fmt.Errorf("sweep reservations: %w", err)
	}
	return nil
}

// pending says whether there is a reservation on any target, or one that waits.
func (g *Gate) pending() bool {
	for _, id := range g.ids {
		if st := &g.states.elements[id]; st.Pending != 0 || st.Units>>32 != 0 {
			return true
		}
	}
	return false
}
