package loader

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"headgate/internal/lab"
)

// TestWakesStopNobody: who listens is told all, in order, and waits where the
// runtime knows of it.
func TestWakesStopNobody(t *testing.T) {
	lab.NeedRoot(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 4096})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	tell := teller(t, m)
	w, err := newWakes(m)
	if err != nil {
		t.Fatal(err)
	}

	type told struct {
		wake Wake
		err  error
	}
	heard := make(chan told)
	go func() {
		for {
			wake, err := w.Next()
			heard <- told{wake, err}
			if err != nil {
				return
			}
		}
	}()
	next := func() told {
		select {
		case got := <-heard:
			return got
		case <-time.After(10 * time.Second):
			t.Fatal("nothing is told")
			panic("unreachable")
		}
	}
	for i := range 300 {
		for range 1 + i%3 {
			tell()
		}
		runtime.GC() // stops the world
		for range 1 + i%3 {
			if got := next(); got.err != nil || got.wake.Kind != WakeTrim || got.wake.Target != 7 {
				t.Fatalf("wake %d: %+v", i, got)
			}
		}
	}

	waits := func() (any, bool) {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		for stack := range strings.SplitSeq(string(stacks), "\n\n") {
			if strings.Contains(stack, "(*Wakes).Next") {
				return stack, strings.Contains(stack, "[IO wait")
			}
		}
		return "nobody listens", false
	}
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		state, is := waits()
		if is {
			break
		}
		if time.Since(begin) > 5*time.Second {
			t.Fatalf("who listens does not wait by the poller: %s", state)
		}
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if got := next(); !IsClosed(got.err) {
		t.Errorf("after Close: %+v", got)
	}
}

// teller returns a function that runs a program which tells of one connection to
// be ended, on target 7.
func teller(t *testing.T, m *ebpf.Map) func() {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:    ebpf.SocketFilter,
		License: "GPL",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -16, 7, asm.Word),
			asm.StoreImm(asm.RFP, -12, int64(WakeTrim), asm.Word),
			asm.StoreImm(asm.RFP, -8, 0, asm.Word),
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -16),
			asm.Mov.Imm(asm.R3, wakeSlotLen),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnRingbufOutput.Call(),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	packet := make([]byte, 64)
	return func() {
		if _, err := p.Run(&ebpf.RunOptions{Data: packet}); err != nil {
			t.Fatal(err)
		}
	}
}
