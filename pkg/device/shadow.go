package device

import (
	"github.com/vishvananda/netlink"

	"headgate/pkg/program"
)

// before returns what others have in front of our program. TCX programs run
// before all filters.
func (h *host) before(at Attachment) ([]Program, error) {
	on, err := query(at.Index)
	if err != nil && at.Method == TCX {
		return nil, err
	}
	var all []Program
	for _, p := range on {
		id, _ := p.LinkID()
		if at.Method == TCX && h.tcx.links[at.Index] == id {
			return all, nil
		}
		all = append(all, Program{ID: p.ID, Name: program.Name(p.ID)})
	}
	if at.Method == TCX {
		return nil, nil // ours was removed: there is no before
	}
	filters, err := filtersOf(at.Index, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return nil, err
	}
	for _, f := range filters {
		if f.chain != 0 || f.handle == 0 {
			continue // the former run only when a filter before sends packets there
		}
		if h.clsact.ours(f) {
			break
		}
		p := Program{ID: f.id, Name: f.name}
		if p.Name == "" {
			p.Name = f.kind
		}
		all = append(all, p)
	}
	return all, nil
}
