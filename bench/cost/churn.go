package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"headgate/bench/internal/gate"
)

// acceptVerb is the first argument of a process that accepts and closes.
const acceptVerb = "accept-and-close"

// churn compares connects and closes a second, eight clients without a pause.
// A client waits for the server's close: no accept queue ever overflows.
func (b *bench) churn(ctx context.Context, r *Report) (err error) {
	srv := b.srv.Command(ctx, "/proc/self/exe", acceptVerb)
	in, err := srv.StdinPipe()
	if err != nil {
		return err
	}
	out, err := srv.StdoutPipe()
	if err != nil {
		return err
	}
	if err := srv.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close(), srv.Wait()) }()
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		return fmt.Errorf("server that accepts and closes: %w", err)
	}
	through := func(port uint16) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) { return b.perSecond(ctx, 8, b.connector(port)) }
	}
	measure := through(port)
	const name = "connects/s"
	subject, err := b.toggle(ctx, name, b.headgate(), 0.97, measure)
	if err != nil {
		return err
	}
	other, err := b.toggle(ctx, name, b.ctCount(), 0, measure)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "haproxy-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	lower, err := gate.HAProxy{Port: proxyPort, Behind: port, MaxConn: 1000, Queue: time.Second}.Start(ctx, b.srv, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lower()) }()
	third, err := b.compare(name+", through / without HAProxy", 0,
		func() (float64, error) { return through(proxyPort)(ctx) }, func() (float64, error) { return measure(ctx) })
	if err != nil {
		return err
	}
	control, err := b.noise(ctx, name, measure)
	r.put(subject, other, third, control)
	return err
}

// acceptAndClose is that process: it ends with its input.
func acceptAndClose() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port}); err != nil {
		return err
	}
	if err := unix.Listen(fd, 4096); err != nil {
		return err
	}
	for range 2 {
		go func() {
			for {
				c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
				if err == unix.EINTR || err == unix.ECONNABORTED {
					continue
				}
				if err != nil {
					return
				}
				unix.Close(c)
			}
		}()
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err // the threads in accept(2) end with the process
}

func (b *bench) connector(port uint16) func() (do func() error, done func(), err error) {
	return func() (do func() error, done func(), err error) {
		return func() error { return connectOnce(b.srv.Addr4, port) }, func() {}, nil
	}
}

func connectOnce(to netip.Addr, port uint16) error {
	fd, err := connect(to, port)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer unix.Close(fd)
	var one [1]byte
	if _, err := unix.Read(fd, one[:]); err != nil {
		return fmt.Errorf("wait for the close: %w", err)
	}
	// The server has closed first; a reset now leaves no TIME_WAIT behind, of
	// which the ports would run out.
	return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

// aborter connects and resets, below what a real server makes of it.
func (b *bench) aborter() (do func() error, done func(), err error) {
	return func() error {
		fd, err := connect(b.srv.Addr4, port)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}, func() {}, nil
}
