package device

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// tcx attaches by TCX links. They are held by their pins alone, so that a
// host of many devices does not cost as many file descriptors.
type tcx struct {
	prog  *ebpf.Program
	id    ebpf.ProgramID
	pins  pins
	links map[int]link.ID // by device, of those that hold prog
}

func (t *tcx) attach(index int) (made bool, err error) {
	if id, ok := t.links[index]; ok {
		on, err := query(index)
		if err != nil {
			return false, err
		}
		if held, ok := find(on, id); ok && held == t.id {
			return false, nil
		}
		delete(t.links, index)
	}
	if ok, err := t.takeOver(index); ok || err != nil {
		return false, err
	}

	l, err := link.AttachTCX(link.TCXOptions{
		Interface: index, Program: t.prog, Attach: ebpf.AttachTCXIngress, Anchor: link.Head(),
	})
	if err != nil {
		return false, err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return false, err
	}
	if err := l.Pin(t.pins.path(linkPin, index)); err != nil {
		return false, err
	}
	t.links[index] = info.ID
	return true, nil
}

// takeOver puts our program into the link that is pinned for a device. A link
// that is not on the device (any more) is dropped: the index may be that of
// another device by now, and the link's own in another namespace.
func (t *tcx) takeOver(index int) (bool, error) {
	path := t.pins.path(linkPin, index)
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("link of an earlier agent, %s: %w", path, err)
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return false, fmt.Errorf("link of an earlier agent, %s: %w", path, err)
	}
	on, err := query(index)
	if err != nil {
		return false, err
	}
	held, ok := find(on, info.ID)
	if !ok {
		return false, t.drop(index)
	}
	if held != t.id {
		if err := l.Update(t.prog); err != nil {
			return false, fmt.Errorf("take over the link of an earlier agent: %w", err)
		}
	}
	t.links[index] = info.ID
	return true, nil
}

// drop detaches and unpins the link of a device, if there is one.
func (t *tcx) drop(index int) error {
	delete(t.links, index)
	path := t.pins.path(linkPin, index)
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		// Unpinning would detach it too, but only in a while, and not as long
		// as somebody looks at it. It fails when the device is gone.
		_ = l.Detach()
		l.Close()
	}
	return remove(path)
}

func query(index int) ([]link.AttachedProgram, error) {
	r, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return nil, err
	}
	return r.Programs, nil
}

// find returns the program that a link holds on a device.
func find(on []link.AttachedProgram, id link.ID) (ebpf.ProgramID, bool) {
	for _, p := range on {
		if at, ok := p.LinkID(); ok && at == id {
			return p.ID, true
		}
	}
	return 0, false
}
