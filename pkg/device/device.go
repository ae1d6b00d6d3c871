// Package device keeps a TC ingress program on the devices of a network
// namespace, those that come later included.
//
// Where the kernel has TCX, each device gets a TCX link at the head of its
// chain; elsewhere, a cls_bpf filter in direct action under clsact. Which of
// the two is found out by trying. Both outlive the process, and the next
// [Attacher] with the same directory takes them over: a device never has two
// programs of ours. What others have attached is never touched.
package device

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"headgate/pkg/scope"
)

// ErrNoHook means that the kernel has neither TCX nor clsact with cls_bpf.
var ErrNoHook = errors.New("the kernel has neither TCX nor clsact with cls_bpf (CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF)")

// Device is a network device.
type Device struct {
	Index    int    // unique within its namespace
	Name     string // may change
	Kind     string // "veth", "bridge", "vxlan" ...; "" for hardware and lo
	Loopback bool
}

// Method is the way in which a program is attached.
type Method string

// The ways to attach.
const (
	TCX    Method = "tcx"
	Legacy Method = "clsact"
)

// Attachment is a device that has our program.
type Attachment struct {
	Device
	Method Method
}

// Failure is a device that should have our program and has it not.
type Failure struct {
	Device
	Err error
}

// Program is a program, or a filter of another kind, that belongs to others.
type Program struct {
	ID   ebpf.ProgramID // 0 for a filter that is not BPF
	Name string         // "" where the kernel does not tell us
}

// Shadow is a device on which others see a packet before us. What they take,
// drop or redirect never reaches our program.
type Shadow struct {
	Device
	Before []Program // in the order in which they run
}

// Options of [New].
type Options struct {
	// Dir is an existing directory on a bpffs, where is noted what belongs to
	// us. Several attachers for different namespaces may share it with each
	// other and with pins of other names. See [Pinned].
	Dir string

	// Filter says whether a device is to have the program; nil: every one.
	// It is asked again when a device is renamed. It must not block.
	Filter func(Device) bool

	// ForceLegacy uses clsact even if there is TCX.
	ForceLegacy bool

	Log *slog.Logger
}

// How often what is not heard of is looked for, and how events are gathered.
const (
	resync     = 5 * time.Second        // between two checks of every device
	gather     = 20 * time.Millisecond  // between two passes over the devices, at least
	gatherMost = 100 * time.Millisecond // the same where a pass takes long
	firstRetry = 100 * time.Millisecond // doubles up to resync
)

// Attacher keeps a program on the devices of one network namespace. Its
// methods are safe for concurrent use.
type Attacher struct {
	log    *slog.Logger
	filter func(Device) bool
	kernel kernel
	noProg bool

	mu      sync.Mutex
	devices map[int]*tracked // those of the namespace, by index
	pruned  bool             // what is noted of devices that are gone was dropped
	settled bool             // no earlier program is attached anywhere
}

// tracked is what is known of a device of the namespace.
type tracked struct {
	Device
	wanted bool   // by the filter
	method Method // "" while not attached
	err    error  // why not
	tries  int    // failed ones in a row
	retry  time.Time
}

// New returns an attacher that has attached nothing yet. ns and prog must stay
// open while it is in use; without a prog it can only [Attacher.Detach].
func New(ns *scope.Netns, prog *ebpf.Program, o Options) (*Attacher, error) {
	if o.Dir == "" {
		return nil, errors.New("devices: no directory to pin in")
	}
	h, err := newHost(ns, prog, o)
	if err != nil {
		return nil, fmt.Errorf("devices: %w", err)
	}
	a := newAttacher(h, o)
	a.noProg = prog == nil
	return a, nil
}

func newAttacher(k kernel, o Options) *Attacher {
	a := &Attacher{log: o.Log, filter: o.Filter, kernel: k, devices: make(map[int]*tracked)}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if a.filter == nil {
		a.filter = func(Device) bool { return true }
	}
	return a
}

// Attached returns the devices that have the program, by index.
func (a *Attacher) Attached() []Attachment {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.attached()
}

func (a *Attacher) attached() []Attachment {
	var all []Attachment
	for _, t := range a.devices {
		if t.method != "" {
			all = append(all, Attachment{t.Device, t.method})
		}
	}
	slices.SortFunc(all, func(x, y Attachment) int { return x.Index - y.Index })
	return all
}

// Kept returns the indexes of the devices that a program of ours is on, or
// something is noted for, by this attacher or an earlier one.
func (a *Attacher) Kept() (indexes []int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	err = a.kernel.enter(func() error {
		indexes, err = a.kernel.kept()
		return err
	})
	return indexes, err
}

// Failed returns the devices that should have the program and have it not, by
// index: some kinds cannot have one, with others it is being tried again.
func (a *Attacher) Failed() []Failure {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []Failure
	for _, t := range a.devices {
		if t.err != nil {
			all = append(all, Failure{t.Device, t.err})
		}
	}
	slices.SortFunc(all, func(x, y Failure) int { return x.Index - y.Index })
	return all
}

// Shadowed asks the kernel for the devices on which programs or filters of
// others run before ours. We go to the head when we attach, and do not fight
// over that place with who comes later.
func (a *Attacher) Shadowed() ([]Shadow, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []Shadow
	var errs []error
	err := a.kernel.enter(func() error {
		for _, at := range a.attached() {
			before, err := a.kernel.before(at)
			if err != nil && classify(err) != gone {
				errs = append(errs, fmt.Errorf("programs on %s: %w", at.Name, err))
			}
			if len(before) > 0 {
				all = append(all, Shadow{at.Device, before})
			}
		}
		return errors.Join(errs...)
	})
	return all, err
}
