package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// errSharedBlock means that a device's filters are in a block that it shares
// with others: ours would be run on devices that it was not meant for.
var errSharedBlock = errors.New("its filters are in a block shared with other devices")

// filterName is what our filters are called in `tc filter show`.
const filterName = "headgate_ingress"

// clsact attaches by cls_bpf filters. Unlike a link, a filter is not something
// that one can hold, and any tool may change it. A filter is ours when its
// program is one that we pinned; or, if the pins were lost, when name and
// program tag are ours. Handles and priorities say nothing.
type clsact struct {
	prog *ebpf.Program
	id   ebpf.ProgramID
	tag  string
	pins pins
	past map[ebpf.ProgramID]bool // programs that our filters may hold
}

func newClsact(prog *ebpf.Program, id ebpf.ProgramID, tag string, p pins) (*clsact, error) {
	c := &clsact{prog: prog, id: id, tag: tag, pins: p, past: make(map[ebpf.ProgramID]bool)}
	pinned, err := p.list(progPin)
	if err != nil {
		return nil, err
	}
	for _, n := range pinned {
		c.past[ebpf.ProgramID(n)] = true
	}
	return c, nil
}

// used says whether there may be filters of ours.
func (c *clsact) used() bool { return len(c.past) > 0 }

// on returns which of these devices have a filter of ours.
func (c *clsact) on(devices []Device) (indexes []int, err error) {
	for _, d := range devices {
		filters, err := filtersOf(d.Index, netlink.HANDLE_MIN_INGRESS)
		if err != nil && classify(err) != gone {
			return nil, err
		}
		if slices.ContainsFunc(filters, c.ours) {
			indexes = append(indexes, d.Index)
		}
	}
	return indexes, nil
}

func (c *clsact) ours(f filter) bool {
	return f.kind == "bpf" && f.chain == 0 && (c.past[f.id] || c.tag != "" && f.tag == c.tag && f.name == filterName)
}

func (c *clsact) attach(index int) (made bool, err error) {
	filters, err := filtersOf(index, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return false, err
	}
	var keep *filter
	for _, f := range filters {
		switch {
		case !c.ours(f):
			continue
		case keep == nil:
			keep = &f
			continue
		case f.id == c.id:
			f, *keep = *keep, f
		}
		if err := c.delete(f); err != nil {
			return false, err
		}
	}
	if keep != nil && keep.id == c.id {
		return false, nil
	}
	if err := c.note(); err != nil {
		return false, err
	}
	if keep != nil {
		if err := netlink.FilterReplace(keep.bpf(c.prog.FD(), filterName)); err != nil {
			return false, fmt.Errorf("replace filter: %w", err)
		}
		return false, nil
	}
	if err := c.addQdisc(index); err != nil {
		return false, err
	}
	f := filter{index: index, parent: netlink.HANDLE_MIN_INGRESS, prio: place(filters), proto: unix.ETH_P_ALL}
	err = netlink.FilterAdd(f.bpf(c.prog.FD(), filterName))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.ENOENT):
		return false, fmt.Errorf("%w: add filter: %w", ErrNoHook, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return false, fmt.Errorf("%w: add filter: %w", errSharedBlock, err)
	default:
		return false, fmt.Errorf("add filter: %w", err)
	}
}

// note pins the program before the first filter holds it: there is no filter
// of ours whose program is not noted, whenever we are killed.
func (c *clsact) note() error {
	if c.past[c.id] {
		return nil
	}
	path := c.pins.path(progPin, int(c.id))
	if err := c.prog.Pin(path); err != nil {
		return err
	}
	c.past[c.id] = true
	return nil
}

// addQdisc makes a clsact where there is none. That it is ours is noted first;
// the note of one that then turns out to be there is taken back.
func (c *clsact) addQdisc(index int) error {
	note := c.pins.path(qdiscPin, index)
	err := os.Mkdir(note, 0o700)
	noted := errors.Is(err, fs.ErrExist)
	if err != nil && !noted {
		return err
	}
	if err = netlink.QdiscAdd(qdisc(index)); err == nil {
		return nil
	}
	if !noted {
		if err := remove(note); err != nil {
			return err
		}
	}
	switch {
	case errors.Is(err, unix.EEXIST):
		return nil
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: add qdisc: %w", ErrNoHook, err)
	default:
		return fmt.Errorf("add qdisc: %w", err)
	}
}

// place returns the lowest priority number that we can have: 1, also when it
// is taken by filters of our kind, among which the latest runs first. Filters
// of one priority have all the same kind and protocol.
func place(filters []filter) uint16 {
	taken := make(map[uint16]bool)
	for _, f := range filters {
		if f.chain == 0 && (f.kind != "bpf" || f.proto != unix.ETH_P_ALL) {
			taken[f.prio] = true
		}
	}
	prio := uint16(1)
	for taken[prio] {
		prio++
	}
	return prio
}

// detach removes our filters from a device, and its clsact if we made it and
// nobody else uses it.
func (c *clsact) detach(index int) error {
	filters, err := filtersOf(index, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return err
	}
	for _, f := range filters {
		if c.ours(f) {
			if err := c.delete(f); err != nil {
				return err
			}
		}
	}
	note := c.pins.path(qdiscPin, index)
	if _, err := os.Stat(note); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		others, err := filtersOf(index, parent)
		if err != nil {
			return err
		}
		if len(others) > 0 {
			return remove(note) // it is theirs from now on
		}
	}
	// Not there, or something else is in its place: it was not ours any more.
	err = netlink.QdiscDel(qdisc(index))
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("delete qdisc: %w", err)
	}
	return remove(note)
}

func (c *clsact) forget(index int) error { return remove(c.pins.path(qdiscPin, index)) }

// release unpins all programs but one, none of which a filter holds any more.
func (c *clsact) release(except ebpf.ProgramID) error {
	for id := range c.past {
		if id == except {
			continue
		}
		if err := remove(c.pins.path(progPin, int(id))); err != nil {
			return err
		}
		delete(c.past, id)
	}
	return nil
}

func qdisc(index int) netlink.Qdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: index,
			Handle:    netlink.MakeHandle(0xffff, 0),
			Parent:    netlink.HANDLE_CLSACT,
		},
		QdiscType: "clsact",
	}
}

func (c *clsact) delete(f filter) error {
	if err := netlink.FilterDel(f.bpf(-1, "")); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete filter: %w", err)
	}
	return nil
}
