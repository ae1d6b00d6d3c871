package e2e

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
)

// crowdThreads is how many threads a crowd connects from.
const crowdThreads = 4

// crowd is many clients that connect to one address at the same moment.
type crowd struct {
	connecting []int // file descriptors
	connected  []int
	refused    int
	failed     map[error]int // other ends

	began    time.Time
	admitted []time.Duration // after that, how long each took that was
	rejected []time.Duration // and each that was refused
}

// newCrowd has n clients connect from a host, every one before any is waited for.
func newCrowd(t *testing.T, from *lab.Host, to netip.AddrPort, n int) *crowd {
	t.Helper()
	return newCrowdOf(t, from, nil, to, n)
}

// newCrowdOf is newCrowd from some addresses of the host, in turn.
func newCrowdOf(t *testing.T, from *lab.Host, sources []netip.Addr, to netip.AddrPort, n int) *crowd {
	t.Helper()
	c := &crowd{failed: make(map[error]int)}
	t.Cleanup(c.close)
	family := unix.AF_INET6
	if to.Addr().Is4() {
		family = unix.AF_INET
	}
	err := from.Do(func() error {
		for i := range n {
			fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			c.connecting = append(c.connecting, fd)
			if len(sources) == 0 {
				continue
			}
			if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(sources[i%len(sources)], 0))); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("make %d clients: %v", n, err)
	}
	var group sync.WaitGroup
	start := make(chan struct{})
	errs := make([]error, n)
	for thread := range crowdThreads {
		group.Go(func() {
			addr := sockaddr(to)
			<-start
			for i := thread; i < n; i += crowdThreads {
				errs[i] = unix.Connect(c.connecting[i], addr)
			}
		})
	}
	c.began = time.Now()
	close(start)
	group.Wait()
	now := time.Since(c.began)
	// A refusal may be there before connect(2) returns; which it then says.
	fds := c.connecting
	c.connecting = nil
	for i, fd := range fds {
		if errs[i] == unix.EINPROGRESS {
			c.connecting = append(c.connecting, fd)
		} else {
			c.end(fd, errs[i], now)
		}
	}
	return c
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// wait waits until every connect has ended, or for a time.
func (c *crowd) wait(t *testing.T, atMost time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(atMost); len(c.connecting) > 0; {
		polls := make([]unix.PollFd, len(c.connecting))
		for i, fd := range c.connecting {
			polls[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
		}
		left := time.Until(deadline).Milliseconds()
		if left <= 0 {
			return
		}
		if _, err := unix.Poll(polls, int(left)); err != nil && err != unix.EINTR {
			t.Fatalf("poll: %v", err)
		}
		now := time.Since(c.began)
		c.connecting = c.connecting[:0]
		for _, p := range polls {
			fd := int(p.Fd)
			if p.Revents == 0 {
				c.connecting = append(c.connecting, fd)
				continue
			}
			var ended error
			if errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil {
				ended = err
			} else if errno != 0 {
				ended = unix.Errno(errno)
			}
			c.end(fd, ended, now)
		}
	}
}

func (c *crowd) end(fd int, err error, took time.Duration) {
	switch err {
	case nil:
		c.connected = append(c.connected, fd)
		c.admitted = append(c.admitted, took)
		return
	case unix.ECONNREFUSED:
		c.refused++
		c.rejected = append(c.rejected, took)
	default:
		c.failed[err]++
	}
	_ = unix.Close(fd)
}

// close closes what is connected and gives up what is not.
func (c *crowd) close() {
	for _, fd := range append(c.connecting, c.connected...) {
		_ = unix.Close(fd)
	}
	c.connecting, c.connected = nil, nil
}

// forget closes what is connected, or has been. Who is still on the way goes on: a
// burst may overflow the queue of packets of a CPU, and a SYN is sent again.
func (c *crowd) forget(t *testing.T) {
	t.Helper()
	c.wait(t, 10*time.Millisecond)
	for _, fd := range c.connected {
		_ = unix.Close(fd)
	}
	c.connected = nil
}

func (c *crowd) String() string {
	return fmt.Sprintf("%d connected, %d refused, %d connecting, failed: %v",
		len(c.connected), c.refused, len(c.connecting), c.failed)
}
