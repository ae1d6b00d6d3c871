package loader

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
)

// What a listener asks for may change while it listens: what is known of it is how
// it was with its last packet.
func TestListenerDefers(t *testing.T) {
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	ln, err := srv.Listen("tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	g := openForTest(t)
	ns := netnsOf(t, srv)
	root := cgroupRoot(t)
	id, err := g.Target(TargetKey{Netns: ns.Cookie(), Port: 8080}, enforce(100), monotonic(t)+time.Minute)
	if err := errors.Join(err, g.AttachCgroup2(root), g.AttachService(root, 1)); err != nil {
		t.Fatal(err)
	}
	raw, err := ln.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, seconds := range []int{0, 5, 0, 5} {
		var set error
		err := raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_DEFER_ACCEPT, seconds) })
		if err := errors.Join(err, set); err != nil {
			t.Fatal(err)
		}
		c, err := cli.Dial(t.Context(), "tcp", netip.AddrPortFrom(srv.Addr4, 8080).String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got, want := g.states.elements[id].Defers, uint32(min(seconds, 1)); got != want {
			t.Errorf("defers for %d s: it is known as %d, want %d", seconds, got, want)
		}
	}
}
