package doctor

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"headgate/pkg/loader"
	"headgate/pkg/netfilter"
	"headgate/pkg/program"
	"headgate/pkg/scope"
)

func (e *examination) bpffs() {
	err := loader.CheckState(e.StateDir)
	switch {
	case err == nil:
		e.add("bpffs", OK, "", "%s is on one, or can be", e.StateDir)
	case errors.Is(err, loader.ErrNotBPFFS):
		e.add("bpffs", Trouble, "mount -t bpf bpf /sys/fs/bpf", "%s is on no BPF file system, and programs cannot be pinned there", e.StateDir)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		e.add("bpffs", Unseen, "run this as root", "this user may not look at %s", e.StateDir)
	default:
		e.add("bpffs", Trouble, "", "%v", err)
	}
}

func (e *examination) cgroup2() {
	root, err := scope.Cgroup2()
	if err != nil {
		e.add("cgroup2", Trouble, "mount -t cgroup2 cgroup2 /sys/fs/cgroup", "%v", err)
		return
	}
	e.add("cgroup2", OK, "", "mounted on %s", root)
}

// programs loads each program and lets go of it again.
func (e *examination) programs() {
	able, err := loader.Check()
	switch {
	case errors.Is(err, unix.EPERM):
		e.add("programs", Unseen, "run this as root", "whether the kernel takes them is not known: this user may load none")
		return
	case err != nil:
		e.add("programs", Trouble, "see what the kernel's verifier says", "the kernel does not take them: %v", err)
		return
	}
	var missing []string
	for _, c := range slices.Sorted(maps.Keys(able)) {
		if !able[c] {
			missing = append(missing, string(c))
		}
	}
	if len(missing) > 0 {
		e.add("programs", Warning, "a newer kernel has them; docs/operations.md says what each is for",
			"the kernel takes them, but cannot do %s", strings.Join(missing, ", "))
		return
	}
	e.add("programs", OK, "", "the kernel takes all of them")
}

// devices asks whether programs go to devices by TCX, or by clsact.
func (e *examination) devices() {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		e.add("devices", Unseen, "", "%v", err)
		return
	}
	_, err = link.QueryPrograms(link.QueryOptions{Target: lo.Index, Attach: ebpf.AttachTCXIngress})
	switch {
	case errors.Is(err, unix.EPERM), err != nil && !e.may(unix.CAP_NET_ADMIN):
		e.add("devices", Unseen, "run this as root", "whether this kernel has TCX is not told to this user")
	case err != nil:
		e.add("devices", OK, "", "no TCX (Linux 6.6 has it): programs on devices are filters of a clsact qdisc")
	default:
		e.add("devices", OK, "", "programs go to devices by TCX")
	}
}

// packetFilter makes the rule that holds, in a namespace that nobody else is in
// and that goes away with the thread.
func (e *examination) packetFilter() {
	const about = "holding"
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the namespace
		result <- holdsInANamespace()
	}()
	err := <-result
	switch {
	case err == nil:
		e.add(about, OK, "", "packets can be held by the packet filter")
	case errors.Is(err, unix.EPERM):
		e.add(about, Unseen, "run this as root", "whether packets can be held is not known: this user may not change a packet filter")
	case errors.Is(err, netfilter.ErrUnsupported):
		e.add(about, Warning, "load nft_queue, or nft_compat and xt_NFQUEUE (modprobe), for hold, pace.max_wait and unit: request",
			"this kernel cannot hold packets")
	default:
		e.add(about, Trouble, "", "packets cannot be held: %v", err)
	}
}

func holdsInANamespace() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	ns, err := scope.OpenNetns("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	_, err = netfilter.Rule{Netns: ns, Mark: loader.HoldMark, Queue: 1}.Ensure()
	return errors.Join(err, ns.Close())
}

// foreign looks for programs of others at the hooks where only one can have its
// way.
func (e *examination) foreign() {
	const about = "others"
	if e.status != nil {
		for _, s := range e.status.Shadowed {
			e.add(about, Warning, fmt.Sprintf("bpftool prog show id %d; see docs/operations.md", s.ID),
				"program %d %s comes before ours at %s %s, and may decide in its place", s.ID, s.Name, s.Hook, s.At)
		}
		if len(e.status.Shadowed) == 0 {
			e.add(about, OK, "", "no program of others is at our hooks, says the agent")
		}
		return
	}
	ns, err := scope.OpenNetns("")
	if err != nil {
		e.add(about, Unseen, "", "%v", err)
		return
	}
	defer ns.Close()
	on, err := link.QueryPrograms(link.QueryOptions{Target: ns.Fd(), Attach: ebpf.AttachSkLookup})
	if err != nil {
		e.add(about, Unseen, "run this as root", "which programs of others are at our hooks is not told to this user")
		return
	}
	n := 0
	for _, p := range on.Programs {
		if name := program.Name(p.ID); !strings.HasPrefix(name, "headgate") {
			n++
			e.add(about, Warning, fmt.Sprintf("bpftool prog show id %d; what it chooses a socket for is let in whatever headgate says", p.ID),
				"program %d %s is at sk_lookup of the host's network namespace", p.ID, name)
		}
	}
	if n == 0 {
		e.add(about, OK, "", "no program of others is at sk_lookup of the host's network namespace")
	}
}
