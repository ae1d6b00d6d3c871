// Package program says what BPF programs are that others have loaded.
package program

import "github.com/cilium/ebpf"

// Name returns the name of a loaded program, as bpftool shows it; empty where it
// is gone, or this process lacks CAP_SYS_ADMIN: its ID has to do then.
func Name(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return ""
	}
	return info.Name
}
