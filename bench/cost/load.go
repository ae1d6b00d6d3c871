package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"headgate/bench/internal/gate"
	"headgate/internal/lab"
	"headgate/internal/lab/backend"
)

const clients = 16

// keepAlive compares requests a second to nginx on connections that stay.
func (b *bench) keepAlive(ctx context.Context, r *Report) (err error) {
	srv, err := b.srv.StartNginx(ctx, lab.Nginx{Port: port})
	if err != nil {
		return err
	}
	defer srv.Stop()
	measure := func(ctx context.Context) (float64, error) {
		return b.perSecond(ctx, clients, b.requester(port))
	}
	const name = "kept-alive requests/s"
	subject, err := b.toggle(ctx, name, b.headgate(), 0.98, measure)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "haproxy-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// One thread, as nginx has one worker.
	proxy := gate.HAProxy{Port: proxyPort, Behind: port, MaxConn: 1000, Queue: time.Second, HTTP: true, Reuse: true}
	lower, err := proxy.Start(ctx, b.srv, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lower()) }()
	proxied := func() (float64, error) { return b.perSecond(ctx, clients, b.requester(proxyPort)) }
	direct := func() (float64, error) { return measure(ctx) }
	other, err := b.compare(name+", through / without HAProxy", 0, proxied, direct)
	if err != nil {
		return err
	}
	control, err := b.noise(ctx, name, measure)
	r.put(subject, other, control)
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
	if err != nil {
		return err
	}
	lower, err := gate.NFTReject(ctx, b.srv, port+2)
	if err != nil {
		return err
	}
	other, err := b.compare("refusals/s, nft reject / closed port", 0, refused(port+2), refused(port+1))
	if err := errors.Join(err, lower()); err != nil {
		return err
	}
	if lower, err = gate.Connlimit(ctx, b.srv, port+2); err != nil {
		return err
	}
	third, err := b.compare("refusals/s, iptables connlimit / closed port", 0, refused(port+2), refused(port+1))
	r.put(ratio, other, third)
	return errors.Join(err, lower())
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

// requester makes requests on one connection, one after the other. nginx ends
// a connection after so many of them; then there is a new one.
func (b *bench) requester(port uint16) func() (do func() error, done func(), err error) {
	return func() (do func() error, done func(), err error) {
		var c net.Conn
		var in *bufio.Reader
		reconnect := func() (err error) {
			if c != nil {
				c.Close()
			}
			c, err = net.Dial("tcp", netip.AddrPortFrom(b.srv.Addr4, port).String())
			if err == nil {
				in = bufio.NewReader(c)
			}
			return err
		}
		if err := reconnect(); err != nil {
			return nil, nil, err
		}
		request := []byte("GET / HTTP/1.1\r\nHost: bench\r\n\r\n")
		return func() error {
			last, err := readResponse(c, in, request)
			if err == nil && last {
				err = reconnect()
			}
			return err
		}, func() { c.Close() }, nil
	}
}

// readResponse makes a request, and says whether the server closes after it.
func readResponse(c net.Conn, in *bufio.Reader, request []byte) (last bool, err error) {
	if _, err := c.Write(request); err != nil {
		return false, err
	}
	length := 0
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return false, err
		}
		if len(line) == 2 {
			break
		}
		switch name, value, _ := strings.Cut(strings.TrimSpace(string(line)), ": "); strings.ToLower(name) {
		case "content-length":
			if length, err = strconv.Atoi(value); err != nil {
				return false, err
			}
		case "connection":
			last = value == "close"
		}
	}
	_, err = io.CopyN(io.Discard, in, int64(length))
	return last, err
}
