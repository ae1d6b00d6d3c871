package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"headgate/internal/lab"
)

// The first arguments of processes that hold connections; the number follows.
const (
	holdServerVerb = "hold-accepted"
	holdClientVerb = "hold-connections"
)

// perProcess is how many connections one process holds: files are limited.
const perProcess = 12_500

// Scale is what it costs to have so many of something.
type Scale struct {
	What     string  `json:"what"`
	Number   int     `json:"number"`
	Refusal  float64 `json:"refused_syn_ns"` // sk_lookup, statistics included
	CPU      float64 `json:"cpu_of_a_core"`
	Resident float64 `json:"resident_mib"`
	Maps     float64 `json:"maps_mib"`
}

// scale measures the real program with more and more connections in flight, and with
// more and more networks exempt, at a port that is full.
func (b *bench) scale(ctx context.Context, r *Report) (err error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program, err := buildAgent(ctx, dir)
	if err != nil {
		return err
	}
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("statistics of programs: %w", err)
	}
	defer func() { err = errors.Join(err, closing(stats)) }()
	r.Scale = nil
	for _, c := range []struct {
		what                  string
		connections, networks int
	}{
		{"connections in flight", 1, 0},
		{"connections in flight", 10_000, 0},
		{"connections in flight", 100_000, 0},
		{"networks exempt", 1, 100},
		{"networks exempt", 1, 10_000},
	} {
		number := max(c.connections, c.networks)
		if b.short && number > 1000 {
			continue
		}
		s, err := b.scaled(ctx, program, dir, c.connections, c.networks)
		if err != nil {
			return fmt.Errorf("%d %s: %w", number, c.what, err)
		}
		s.What, s.Number = c.what, number
		fmt.Fprintf(os.Stderr, "  %d %s: %.0f ns for a refused SYN, %.1f %% of a core, %.0f MiB, and maps of %.0f MiB\n",
			s.Number, s.What, s.Refusal, 100*s.CPU, s.Resident, s.Maps)
		r.Scale = append(r.Scale, s)
	}
	return nil
}

func (b *bench) scaled(ctx context.Context, program, dir string, connections, networks int) (s Scale, err error) {
	exempt := make([]string, networks)
	for i := range exempt {
		exempt[i] = fmt.Sprintf("172.%d.%d.0/24", 16+i>>8, i&255)
	}
	text := fmt.Sprintf("rules:\n  - name: full\n    port: %d\n    limit: {algorithm: fixed, initial: %d, max: %[2]d}\n    exempt: [%s]\n",
		port, connections, strings.Join(exempt, ", "))
	stop, pid, err := b.startAgent(ctx, program, dir, text)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	release, err := b.hold(ctx, connections)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, release()) }()
	time.Sleep(3 * time.Second)
	if s.CPU, s.Resident, s.Maps, err = b.taken(pid); err != nil {
		return s, err
	}
	before, err := programStats(pid)
	if err != nil {
		return s, err
	}
	_, err = b.perSecond(ctx, 2, func() (func() error, func(), error) {
		return func() error { return refusedOnce(b.srv.Addr4, port) }, func() {}, nil
	})
	after, err2 := programStats(pid)
	was, is := before["headgate_lookup"], after["headgate_lookup"]
	if is.runs > was.runs {
		s.Refusal = float64(is.ns-was.ns) / float64(is.runs-was.runs)
	}
	return s, errors.Join(err, err2)
}

// hold has processes hold connections, at either end, until release.
func (b *bench) hold(ctx context.Context, n int) (release func() error, err error) {
	ln, err := b.srv.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	listener, err := ln.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	var ends []func() error
	release = func() (err error) {
		for _, end := range ends {
			err = errors.Join(err, end())
		}
		return err
	}
	start := func(h *lab.Host, verb string, args ...string) (io.Reader, error) {
		cmd := h.Command(ctx, "/proc/self/exe", append([]string{verb}, args...)...)
		cmd.Stderr = os.Stderr
		cmd.ExtraFiles = []*os.File{listener}
		in, err := cmd.StdinPipe()
		if err != nil {
			return nil, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		ends = append(ends, func() error { return errors.Join(in.Close(), cmd.Wait()) })
		return out, nil
	}
	var ready []io.Reader
	for i, left := 0, n; left > 0; i, left = i+1, left-perProcess {
		many := strconv.Itoa(min(left, perProcess))
		from := netip.AddrFrom4([4]byte{10, 83, 1, byte(150 + i)})
		if !b.held[from] {
			if err := b.cli.AddAddr("srv", netip.PrefixFrom(from, 24)); err != nil {
				return nil, errors.Join(err, release())
			}
			b.held[from] = true
		}
		accepted, err := start(b.srv, holdServerVerb, many)
		if err != nil {
			return nil, errors.Join(err, release())
		}
		connected, err := start(b.cli, holdClientVerb, many, from.String(), netip.AddrPortFrom(b.srv.Addr4, port).String())
		if err != nil {
			return nil, errors.Join(err, release())
		}
		ready = append(ready, accepted, connected)
	}
	for _, out := range ready {
		if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
			return nil, errors.Join(fmt.Errorf("a process that holds connections: %w", err), release())
		}
	}
	return release, nil
}

// holdMain is such a process: it ends with its input.
func holdMain(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	one := func() error {
		_, _, err := unix.Accept4(3, unix.SOCK_CLOEXEC)
		return err
	}
	if args[0] == holdClientVerb {
		from, err := netip.ParseAddr(args[2])
		if err != nil {
			return err
		}
		to, err := netip.ParseAddrPort(args[3])
		if err != nil {
			return err
		}
		one = func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			// Its port is chosen when it is known where it goes: else they run out.
			if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
				return err
			}
			if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()}); err != nil {
				return err
			}
			return unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
		}
	}
	for i := 0; i < n; {
		switch err := one(); err {
		case nil:
			i++
		case unix.EINTR, unix.ECONNABORTED, unix.EAGAIN:
			time.Sleep(time.Millisecond)
		default:
			return fmt.Errorf("number %d: %w", i, err)
		}
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// startAgent starts the real program with a configuration, and waits until it is there.
func (b *bench) startAgent(ctx context.Context, program, dir, config string) (stop func() error, pid int, err error) {
	file := filepath.Join(dir, "headgate.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, 0, err
	}
	cmd := b.srv.Command(ctx, program, "run", "-c", file, "--state", b.state, "--listen", "127.0.0.1:9464", "--log-level", "error")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	stop = func() error {
		_ = cmd.Process.Signal(os.Interrupt)
		return cmd.Wait()
	}
	for end := time.Now().Add(20 * time.Second); !b.srv.Listens(9464); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return nil, 0, errors.Join(errors.New("the agent does not listen"), stop())
		}
	}
	return stop, cmd.Process.Pid, nil
}

// taken is what a process takes at rest: of a core, and MiB of its own and of maps.
func (b *bench) taken(pid int) (cpu, residentM, mapsM float64, err error) {
	begin := time.Now()
	at, err := cpuTime(pid)
	if err != nil {
		return 0, 0, 0, err
	}
	time.Sleep(20 * b.phase) // the clock of a process has ticks of 10 ms
	end, err := cpuTime(pid)
	if err != nil {
		return 0, 0, 0, err
	}
	cpu = (end - at).Seconds() / time.Since(begin).Seconds()
	if residentM, err = resident(pid); err != nil {
		return 0, 0, 0, err
	}
	mapsM, err = mapMemory(pid)
	return cpu, residentM, mapsM, err
}
