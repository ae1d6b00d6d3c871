package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
)

const clients = 16

// churn compares connects and closes a second, eight clients without a pause.
func (b *bench) churn(ctx context.Context, r *Report) error {
	srv, err := b.srv.StartServer(ctx, backend.Spec{Protocol: "line", Listen: []string{fmt.Sprintf(":%d", port)}})
	if err != nil {
		return err
	}
	defer srv.Stop()
	ratios, err := b.toggle(ctx, "connects/s", 0.95, func(ctx context.Context) (float64, error) {
		return b.perSecond(ctx, 8, func() (func() error, func(), error) {
			return func() error { return connectOnce(b.srv.Addr4) }, func() {}, nil
		})
	})
	r.Ratios = append(r.Ratios, ratios...)
	return err
}

// keepAlive compares requests a second to nginx on connections that stay.
func (b *bench) keepAlive(ctx context.Context, r *Report) error {
	srv, err := b.srv.StartNginx(ctx, lab.Nginx{Port: port})
	if err != nil {
		return err
	}
	defer srv.Stop()
	ratios, err := b.toggle(ctx, "kept-alive requests/s", 0.98, func(ctx context.Context) (float64, error) {
		return b.perSecond(ctx, clients, b.requester)
	})
	r.Ratios = append(r.Ratios, ratios...)
	return err
}

// refusal compares refusals a second at a full port with those of a closed one.
func (b *bench) refusal(ctx context.Context, r *Report) error {
	srv, err := b.srv.StartServer(ctx, backend.Spec{Protocol: "line", Listen: []string{fmt.Sprintf(":%d", port)}})
	if err != nil {
		return err
	}
	defer srv.Stop()
	a, err := b.protect(0)
	if err != nil {
		return err
	}
	defer a.Remove()
	refused := func(port uint16) func() (float64, error) {
		return func() (float64, error) {
			return b.perSecond(ctx, 2, func() (func() error, func(), error) {
				return func() error { return refusedOnce(b.srv.Addr4, port) }, func() {}, nil
			})
		}
	}
	ratio, err := b.compare("refusals/s, full port / closed port", 0, refused(port), refused(port+1))
	r.Ratios = append(r.Ratios, ratio)
	return err
}

// perSecond runs n workers for a phase and returns how often they did it a second.
func (b *bench) perSecond(ctx context.Context, n int, worker func() (do func() error, done func(), err error)) (float64, error) {
	var count atomic.Int64
	var failure error
	var once sync.Once
	var wg sync.WaitGroup
	begin := time.Now()
	end := begin.Add(b.phase)
	for range n {
		wg.Go(func() {
			err := b.cli.Do(func() error {
				do, done, err := worker()
				if err != nil {
					return err
				}
				defer done()
				for time.Now().Before(end) && ctx.Err() == nil {
					if err := do(); err != nil {
						return err
					}
					count.Add(1)
				}
				return ctx.Err()
			})
			if err != nil {
				once.Do(func() { failure = err })
			}
		})
	}
	wg.Wait()
	return float64(count.Load()) / time.Since(begin).Seconds(), failure
}

// connect opens a blocking socket, below the net package: what is measured is
// the kernel.
func connect(to netip.Addr, port uint16) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.As4(), Port: int(port)}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func connectOnce(to netip.Addr) error {
	fd, err := connect(to, port)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	// A reset leaves no TIME_WAIT, of which the ports would run out.
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		unix.Close(fd)
		return err
	}
	return unix.Close(fd)
}

func refusedOnce(to netip.Addr, port uint16) error {
	fd, err := connect(to, port)
	if err == unix.ECONNREFUSED {
		return nil
	}
	if err == nil {
		unix.Close(fd)
		err = fmt.Errorf("port %d was to refuse", port)
	}
	return err
}

// requester makes requests on one connection, one after the other.
func (b *bench) requester() (do func() error, done func(), err error) {
	c, err := net.Dial("tcp", netip.AddrPortFrom(b.srv.Addr4, port).String())
	if err != nil {
		return nil, nil, err
	}
	request := []byte("GET / HTTP/1.1\r\nHost: bench\r\n\r\n")
	in := bufio.NewReader(c)
	return func() error {
		if _, err := c.Write(request); err != nil {
			return err
		}
		return readResponse(in)
	}, func() { c.Close() }, nil
}

func readResponse(in *bufio.Reader) error {
	length := 0
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) == 2 {
			break
		}
		fmt.Sscanf(string(line), "Content-Length: %d", &length)
	}
	_, err := io.CopyN(io.Discard, in, int64(length))
	return err
}
