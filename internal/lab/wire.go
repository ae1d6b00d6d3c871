package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wireBuffer is what a wire's sockets may hold while it does not get the CPU:
// a burst of thousands of small frames.
const wireBuffer = 32 << 20

// Wire carries frames between two hosts in user space, where each of them can
// be looked at, changed, lost, delayed or doubled. Its ends are two spokes of
// a lab; the hub between them sees the frames only as they pass.
type Wire struct {
	A, B WireEnd

	lines []*line
	done  chan struct{}
	group sync.WaitGroup
}

// WireEnd is one of the two hosts, with the addresses that the wire gave it.
// Traffic between these addresses goes by the wire.
type WireEnd struct {
	Host  *Host
	Addr4 netip.Addr
	Addr6 netip.Addr
}

// Frame is an Ethernet frame on a wire. It is delivered once and at once
// unless the wire's hook says otherwise.
type Frame struct {
	From *Host
	Data []byte // from the MAC header on; may be changed and replaced

	delays []time.Duration // one for each delivery
}

// Drop has the frame lost.
func (f *Frame) Drop() { f.delays = nil }

// Delay has all deliveries of the frame come later. Frames with the same delay
// keep their order, and others overtake them.
func (f *Frame) Delay(d time.Duration) {
	for i := range f.delays {
		f.delays[i] += d
	}
}

// Duplicate has the frame delivered once more, after a delay of its own.
func (f *Frame) Duplicate(d time.Duration) { f.delays = append(f.delays, d) }

// Segment returns the TCP segment in the frame; ok is false when it has none.
func (f *Frame) Segment() (s Segment, ok bool) { return parseSegment(f.Data) }

// NewWire lays a wire between two spokes of the lab and shows every frame to
// hook, of either direction on one goroutine for each. A nil hook lets all
// pass. Both hosts then compute checksums and cut segments themselves, so that
// a frame is what would be on a cable. The caller must Close the wire before
// the lab.
func (l *Lab) NewWire(a, b *Host, hook func(*Frame)) (*Wire, error) {
	hub := l.hosts[0]
	if a == hub || b == hub || a == b {
		return nil, errors.New("a wire is between two spokes of the lab")
	}
	w := &Wire{done: make(chan struct{})}
	w.A, w.B = wireEnd(a, 1), wireEnd(b, 2)
	if err := w.build(hub, hook); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func wireEnd(h *Host, n byte) WireEnd {
	return WireEnd{
		Host:  h,
		Addr4: netip.AddrFrom4([4]byte{10, 84, 0, n}),
		Addr6: netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x84, 15: n}),
	}
}

func (w *Wire) build(hub *Host, hook func(*Frame)) error {
	for _, end := range []WireEnd{w.A, w.B} {
		if err := end.Host.Do(func() error { return noOffload(hub.Name) }); err != nil {
			return fmt.Errorf("wire at host %s: %w", end.Host.Name, err)
		}
	}
	for _, way := range [][2]*Host{{w.A.Host, w.B.Host}, {w.B.Host, w.A.Host}} {
		ln := &line{from: way[0], hook: hook, wake: make(chan struct{}, 1)}
		w.lines = append(w.lines, ln)
		err := hub.Do(func() (err error) {
			if ln.in, err = packetSocket(way[0].Name, unix.ETH_P_ALL); err != nil {
				return err
			}
			ln.out, err = packetSocket(way[1].Name, 0)
			return err
		})
		if err != nil {
			return fmt.Errorf("wire from %s to %s: %w", way[0].Name, way[1].Name, err)
		}
		w.group.Go(ln.receive)
		w.group.Go(func() { ln.deliverLate(w.done) })
	}
	for _, end := range []WireEnd{w.A, w.B} {
		err := end.Host.AddAddr(hub.Name, netip.PrefixFrom(end.Addr4, 24), netip.PrefixFrom(end.Addr6, 64))
		if err != nil {
			return err
		}
	}
	return nil
}

// Close takes the wire away; what it still holds is lost. It returns an error
// when the wire has failed, or has itself lost a frame.
func (w *Wire) Close() error {
	close(w.done)
	var errs []error
	for _, ln := range w.lines {
		errs = append(errs, ln.close())
	}
	w.group.Wait()
	for _, ln := range w.lines {
		errs = append(errs, ln.failure)
	}
	return errors.Join(errs...)
}

// line is one direction of a wire.
type line struct {
	from    *Host
	hook    func(*Frame)
	in, out *os.File
	failure error // of the receiver; read after it has ended

	mu   sync.Mutex
	late []delivery // those to come, soonest first
	wake chan struct{}
}

type delivery struct {
	at   time.Time
	data []byte
}

func (ln *line) receive() {
	buf := make([]byte, 1<<16)
	for {
		n, err := ln.in.Read(buf)
		if errors.Is(err, unix.ENETDOWN) {
			continue
		}
		if err != nil {
			if !errors.Is(err, fs.ErrClosed) {
				ln.failure = fmt.Errorf("wire from %s: %w", ln.from.Name, err)
			}
			return
		}
		f := Frame{From: ln.from, Data: buf[:n:n], delays: []time.Duration{0}}
		if ln.hook != nil {
			ln.hook(&f)
		}
		for _, d := range f.delays {
			if d > 0 {
				ln.later(delivery{at: time.Now().Add(d), data: append([]byte(nil), f.Data...)})
			} else {
				ln.send(f.Data)
			}
		}
	}
}

// later puts a delivery behind those that are due before it or with it.
func (ln *line) later(d delivery) {
	ln.mu.Lock()
	i := len(ln.late)
	for i > 0 && ln.late[i-1].at.After(d.at) {
		i--
	}
	ln.late = append(ln.late, d)
	copy(ln.late[i+1:], ln.late[i:])
	ln.late[i] = d
	ln.mu.Unlock()
	select {
	case ln.wake <- struct{}{}:
	default:
	}
}

func (ln *line) deliverLate(done <-chan struct{}) {
	for {
		var due <-chan time.Time
		ln.mu.Lock()
		for len(ln.late) > 0 && !ln.late[0].at.After(time.Now()) {
			ln.send(ln.late[0].data)
			ln.late = ln.late[1:]
		}
		if len(ln.late) > 0 {
			due = time.After(time.Until(ln.late[0].at))
		}
		ln.mu.Unlock()
		select {
		case <-done:
			return
		case <-ln.wake:
		case <-due:
		}
	}
}

// send ignores errors: a link that is going down loses what is sent on it.
func (ln *line) send(data []byte) { _, _ = ln.out.Write(data) }

func (ln *line) close() error {
	var errs []error
	if ln.in != nil {
		lost, err := lostFrames(ln.in)
		if lost > 0 {
			err = fmt.Errorf("the wire from %s lost %d frames of its own", ln.from.Name, lost)
		}
		errs = append(errs, err, ln.in.Close())
	}
	if ln.out != nil {
		errs = append(errs, ln.out.Close())
	}
	return errors.Join(errs...)
}

// packetSocket opens a link of the calling thread's namespace for frames of a
// protocol (host byte order; 0 for sending only). It does not see what the
// namespace itself sends.
func packetSocket(link string, protocol uint16) (*os.File, error) {
	dev, err := net.InterfaceByName(link)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", link, err)
	}
	// Protocol 0 until it is bound: no frame of another link gets in.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	big := protocol<<8 | protocol>>8
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, wireBuffer),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, wireBuffer),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: big, Ifindex: dev.Index}),
	)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("packet socket on %s: %w", link, err)
	}
	return os.NewFile(uintptr(fd), "packet socket on "+link), nil
}

// lostFrames returns how many frames did not fit into a packet socket.
func lostFrames(f *os.File) (lost uint32, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		var stats *unix.TpacketStats
		if stats, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			lost = stats.Drops
		}
	})
	return lost, errors.Join(err, ctlErr)
}

// noOffload has the kernel finish every packet before it gives it to the link:
// else a veth passes on large segments without their checksums.
func noOffload(link string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	for _, feature := range []uint32{unix.ETHTOOL_STXCSUM, unix.ETHTOOL_STSO, unix.ETHTOOL_SGSO} {
		if err := ethtoolOff(fd, link, feature); err != nil {
			return fmt.Errorf("turning an offload (%#x) of %s off: %w", feature, link, err)
		}
	}
	return nil
}

// ethtoolOff sets a feature to 0. The structs are ethtool_value of
// linux/ethtool.h and ifreq of netdevice(7).
func ethtoolOff(fd int, link string, feature uint32) error {
	value := struct{ command, data uint32 }{command: feature}
	req := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(req.name[:unix.IFNAMSIZ-1], link)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		return errno
	}
	return nil
}
