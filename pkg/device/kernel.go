package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"headgate/pkg/scope"
)

// kernel is what an [Attacher] asks of the kernel, and of what is pinned.
type kernel interface {
	// enter runs f inside the namespace; the methods below, watch aside, are
	// called from within.
	enter(f func() error) error

	// devices lists the devices of the namespace.
	devices() ([]Device, error)

	// attach leaves exactly one program of ours on a device, the current
	// one. made: none was there before.
	attach(Device) (m Method, made bool, err error)

	// detach leaves none of ours.
	detach(Device) error

	// forget drops what is kept for a device that has left the namespace,
	// and detaches from it where it went to.
	forget(index int) error

	// kept returns the indexes of the devices that something of ours is on or
	// kept for.
	kept() ([]int, error)

	// settle is told that no program but the current one is attached.
	settle() error

	// clear drops whatever is still kept.
	clear() error

	// before returns the foreign programs that run before ours.
	before(Attachment) ([]Program, error)

	// watch tells of devices until ctx ends, or until the kernel had to drop
	// something.
	watch(ctx context.Context) (<-chan change, error)
}

// host is the real kernel.
type host struct {
	log     *slog.Logger
	ns      *scope.Netns
	pins    pins
	tcx     *tcx
	clsact  *clsact
	without bool // TCX
}

func newHost(ns *scope.Netns, prog *ebpf.Program, o Options) (*host, error) {
	h := &host{log: o.Log, ns: ns, pins: pins{o.Dir, ns.Cookie()}, without: o.ForceLegacy}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	var info ebpf.ProgramInfo
	if prog != nil {
		i, err := prog.Info()
		if err != nil {
			return nil, fmt.Errorf("program: %w", err)
		}
		info = *i
	}
	id, _ := info.ID()
	h.tcx = &tcx{prog: prog, id: id, pins: h.pins, links: make(map[int]link.ID)}
	var err error
	h.clsact, err = newClsact(prog, id, info.Tag, h.pins)
	return h, err
}

func (h *host) enter(f func() error) error { return h.ns.Do(f) }

func (h *host) attach(d Device) (Method, bool, error) {
	if !h.without {
		made, err := h.tcx.attach(d.Index)
		if !errors.Is(err, link.ErrNotSupported) {
			if err == nil && h.clsact.used() {
				err = h.clsact.detach(d.Index) // of a predecessor that was told to use it
			}
			return TCX, made, err
		}
		h.without = true
		h.log.Info("this kernel has no TCX; using clsact")
	}
	made, err := h.clsact.attach(d.Index)
	if err == nil {
		err = h.tcx.drop(d.Index)
	}
	return Legacy, made, err
}

func (h *host) detach(d Device) error {
	return errors.Join(h.tcx.drop(d.Index), h.clsact.detach(d.Index))
}

func (h *host) forget(index int) error {
	// Its qdiscs went with the device, also when it only moved elsewhere. A
	// TCX link may go with it, and would be run in a namespace not ours.
	return errors.Join(h.tcx.drop(index), h.clsact.forget(index))
}

func (h *host) kept() ([]int, error) {
	all, err := h.noted()
	if err != nil || !h.clsact.used() {
		return all, err
	}
	// In a clsact of others nothing is noted but the program.
	listed, err := h.devices()
	if err != nil {
		return nil, err
	}
	filters, err := h.clsact.on(listed)
	all = append(all, filters...)
	slices.Sort(all)
	return slices.Compact(all), err
}

// noted returns the indexes of the devices that something is noted for.
func (h *host) noted() ([]int, error) {
	links, err := h.pins.list(linkPin)
	if err != nil {
		return nil, err
	}
	qdiscs, err := h.pins.list(qdiscPin)
	return append(links, qdiscs...), err
}

func (h *host) settle() error {
	var except ebpf.ProgramID
	if h.without {
		except = h.clsact.id
	}
	return h.clsact.release(except)
}

func (h *host) clear() error {
	noted, err := h.noted()
	if err != nil {
		return err
	}
	var errs []error
	for _, index := range noted {
		errs = append(errs, h.forget(index))
	}
	return errors.Join(append(errs, h.clsact.release(0))...)
}

// remove removes a pin or directory; it is no error if there is none.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
