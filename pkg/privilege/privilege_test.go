package privilege

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"headgate/pkg/config"
)

// What Drop does is seen on a process of its own, in the tests of the whole chain.
func TestNeeded(t *testing.T) {
	three := []cap.Value{cap.BPF, cap.NET_ADMIN, cap.PERFMON}
	for _, tt := range []struct {
		rule config.Rule
		more []cap.Value
	}{
		{config.Rule{}, nil},
		{config.Rule{Hold: config.Hold{MaxWait: 1}}, []cap.Value{cap.NET_RAW}},
		{config.Rule{Unit: config.UnitRequest}, []cap.Value{cap.NET_RAW}},
		{config.Rule{Scope: config.Scope{Netns: "blue"}}, []cap.Value{cap.SYS_ADMIN}},
	} {
		cfg := config.Default()
		cfg.Rules = []config.Rule{{}, tt.rule}
		if got, want := Needed(cfg), append(slices.Clone(three), tt.more...); !slices.Equal(got, want) {
			t.Errorf("%+v: %v, want %v", tt.rule, got, want)
		}
	}
}

// A thread enters a system call that waits, over and over, just when all threads are
// to be changed. Unattended, one run of five hangs, for a minute.
func TestAttended(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var b [1]byte
		for {
			if n, err := unix.Read(pipe[0], b[:]); n == 0 || err != nil && err != unix.EINTR {
				return
			}
		}
	}()
	defer func() {
		unix.Close(pipe[1])
		<-ended
		unix.Close(pipe[0])
	}()
	for begin := time.Now(); time.Since(begin) < 2*time.Second; {
		stop := attended()
		for range 100 {
			if _, err := unix.Write(pipe[1], []byte{0}); err != nil {
				t.Fatal(err)
			}
			wait := time.Duration(rand.IntN(40)) * time.Microsecond // for the thread to wake, and wait again
			for at := time.Now(); time.Since(at) < wait; {
			}
			at := time.Now()
			if _, err := cap.Prctlw(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(at); took > 5*time.Second {
				t.Fatalf("to change all threads took %v", took)
			}
		}
		stop()
	}
}
